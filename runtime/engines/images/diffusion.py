"""Generates one image in steps, so that other models can use the device in between.

Source: Rombach et al. 2022 (latent diffusion); Ho and Salimans 2022, eq. 6 (guidance without a
classifier); the steps and their order are those of diffusers' StableDiffusionPipeline.
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
    prompt_ids: npt.NDArray[np.int64]
    """[1, tokens]."""
    negative_ids: npt.NDArray[np.int64]
    seed: int
    steps: int
    width: int
    """In pixels, a multiple of the decoder's scale."""
    height: int
    guidance: float
    """1 or less: without guidance."""


def diffuse(
    pipeline: Pipeline, job: DiffusionJob, scale: int
) -> Generator[None, None, npt.NDArray[np.uint8]]:
    """Pixels [height, width, 3]; yields between steps. Runs in the device's thread.

    Args:
        pipeline: the model.
        job: the image's parameters.
        scale: pixels per element of the latent image, in each direction.
    """
    device = pipeline.device
    embeddings = _embeddings(pipeline, job, device)
    scheduler = pipeline.new_scheduler()
    scheduler.set_timesteps(job.steps, device=device)
    # Sampled on the CPU, so that a seed gives the same image on all devices.
    generator = torch.Generator("cpu").manual_seed(job.seed)
    shape = (1, pipeline.unet.config.in_channels, job.height // scale, job.width // scale)
    noise = torch.randn(shape, generator=generator, dtype=embeddings.dtype)
    latents = noise.to(device) * scheduler.init_noise_sigma
    extra = _step_arguments(scheduler, generator)
    for time in scheduler.timesteps:
        yield
        latents = _step(pipeline, scheduler, latents, time, embeddings, job.guidance, extra)
    yield
    decoded = pipeline.vae.decode(
        latents / pipeline.vae.config.scaling_factor, return_dict=False, generator=generator
    )[0]
    pixels = ((decoded[0].float() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
    return np.ascontiguousarray(pixels.permute(1, 2, 0).cpu().numpy())


def _embeddings(pipeline: Pipeline, job: DiffusionJob, device: torch.device) -> torch.Tensor:
    """Embeddings of the prompt; with guidance, preceded by those of the negative prompt."""
    rows = [job.prompt_ids]
    if job.guidance > 1:
        rows.insert(0, job.negative_ids)
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
    scaled = scheduler.scale_model_input(torch.cat([latents] * len(embeddings)), time)
    noise = pipeline.unet(scaled, time, encoder_hidden_states=embeddings, return_dict=False)[0]
    if len(embeddings) > 1:
        negative, positive = noise.chunk(2)
        noise = negative + guidance * (positive - negative)
    result: torch.Tensor = scheduler.step(noise, time, latents, **extra, return_dict=False)[0]
    return result


def _step_arguments(scheduler: Any, generator: torch.Generator) -> dict[str, Any]:
    """Schedulers that sample noise take a generator, the others refuse one."""
    parameters = inspect.signature(scheduler.step).parameters
    return {"generator": generator} if "generator" in parameters else {}
