"""Making one image, a piece of work at a time, so that other models have the device in between.

Source: Rombach et al. 2022 (latent diffusion); Ho and Salimans 2022, eq. 6 (guidance without a
classifier); the order of the steps is that of diffusers' StableDiffusionPipeline.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Generator

    import numpy.typing as npt

    from runtime.engines.images.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class DiffusionJob:
    """One image as it is asked for."""

    prompt_ids: npt.NDArray[np.int64]
    """[1, tokens]."""
    negative_ids: npt.NDArray[np.int64]
    seed: int
    steps: int
    width: int
    """In pixels, a multiple of the decoder's factor."""
    height: int
    guidance: float
    """1 or less: the prompt alone."""


def diffuse(
    pipeline: Pipeline, order: DiffusionJob, scale: int
) -> Generator[None, None, npt.NDArray[np.uint8]]:
    """Pixels [height, width, 3]; yields after each piece of work. Runs on the device.

    Args:
        pipeline: the model's parts.
        order: the image.
        scale: pixels per element of the latent image, in each direction.
    """
    device = pipeline.device
    embeddings = _embeddings(pipeline, order, device)
    scheduler = pipeline.new_scheduler()
    scheduler.set_timesteps(order.steps, device=device)
    # Drawn on the CPU, so that a seed gives one image whatever the device.
    generator = torch.Generator("cpu").manual_seed(order.seed)
    shape = (1, pipeline.unet.config.in_channels, order.height // scale, order.width // scale)
    noise = torch.randn(shape, generator=generator, dtype=embeddings.dtype)
    latents = noise.to(device) * scheduler.init_noise_sigma
    extra = _extra(scheduler, generator)
    for time in scheduler.timesteps:
        yield
        latents = _step(pipeline, scheduler, latents, time, embeddings, order.guidance, extra)
    yield
    decoded = pipeline.vae.decode(
        latents / pipeline.vae.config.scaling_factor, return_dict=False, generator=generator
    )[0]
    pixels = ((decoded[0].float() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
    return np.ascontiguousarray(pixels.permute(1, 2, 0).cpu().numpy())


def _embeddings(pipeline: Pipeline, order: DiffusionJob, device: torch.device) -> torch.Tensor:
    """Of the prompt; with guidance, of what is to be kept away from before it."""
    rows = [order.prompt_ids]
    if order.guidance > 1:
        rows.insert(0, order.negative_ids)
    ids = torch.from_numpy(np.concatenate(rows)).to(device)
    embeddings: torch.Tensor = pipeline.text_encoder(ids)[0]
    return embeddings.to(pipeline.unet.dtype)


def _step(
    pipeline: Pipeline,
    scheduler: Any,
    latents: torch.Tensor,
    time: torch.Tensor,
    embeddings: torch.Tensor,
    guidance: float,
    extra: dict[str, Any],
) -> torch.Tensor:
    given = scheduler.scale_model_input(torch.cat([latents] * len(embeddings)), time)
    noise = pipeline.unet(given, time, encoder_hidden_states=embeddings, return_dict=False)[0]
    if len(embeddings) > 1:
        without, towards = noise.chunk(2)
        noise = without + guidance * (towards - without)
    result: torch.Tensor = scheduler.step(noise, time, latents, **extra, return_dict=False)[0]
    return result


def _extra(scheduler: Any, generator: torch.Generator) -> dict[str, Any]:
    """Schedules that draw noise on their way take a generator, the others refuse one."""
    takes = inspect.signature(scheduler.step).parameters
    return {"generator": generator} if "generator" in takes else {}
