"""The engine of diffusers' pipelines: Stable Diffusion, whose images are made in steps.

The parts (text encoder, denoiser, decoder and scheduler) are built without weights from their
configuration files, by classes of transformers and diffusers. diffusers is an optional extra,
imported only when such a model is loaded. Other models can use the device between steps.

Source: Rombach et al. 2022 (latent diffusion); Ho and Salimans 2022, eq. 6 (guidance without a
classifier); the steps and their order are those of diffusers' StableDiffusionPipeline.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.engines.engine import Engine, ModelFolder, ParameterSlot, Skeleton
from runtime.engines.networks.configuration import read_json, without_memory
from runtime.engines.networks.network import build_transformer, digest_of, parameter_slot
from runtime.errors import LoadFailed, ModelInvalid, ModelUnsupported
from runtime.storage.listing import PIPELINE_INDEX
from runtime.weights.safetensors_files import StoredTensor

SCHEDULER = "scheduler/scheduler_config.json"
PIPELINE = "StableDiffusionPipeline"
PARTS: Mapping[str, tuple[str, str]] = {
    "text_encoder": ("transformers", "CLIPTextModel"),
    "unet": ("diffusers", "UNet2DConditionModel"),
    "vae": ("diffusers", "AutoencoderKL"),
}
"""The library and class of each part with weights."""
OLD_NAMES = {
    ".to_q.": ".query.",
    ".to_k.": ".key.",
    ".to_v.": ".value.",
    ".to_out.0.": ".proj_attn.",
}
"""Names of attention weights in decoders from before 2023."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts of one model. Not for concurrent use."""

    text_encoder: Any
    unet: Any
    vae: Any
    scheduler_class: Any
    scheduler_config: Mapping[str, Any]

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.unet.parameters()).device
        return device

    def new_scheduler(self) -> Any:
        """A scheduler for one image; it has state."""
        return self.scheduler_class.from_config(dict(self.scheduler_config))


def check_index(folder: Path) -> None:
    """Raises ModelInvalid for a pipeline or a part of an unsupported class."""
    index = read_json(folder / PIPELINE_INDEX)
    name = index.get("_class_name")
    if name != PIPELINE:
        raise ModelUnsupported(
            f"{PIPELINE_INDEX} names the pipeline {name!r}; only {PIPELINE} is supported"
        )
    for part, (library, kind) in PARTS.items():
        if index.get(part) != [library, kind]:
            raise ModelUnsupported(
                f"{PIPELINE_INDEX} has {part} {index.get(part)!r}; only {[library, kind]} is"
                " supported"
            )


class PipelineEngine(Engine):
    """Of diffusers' pipelines."""

    name = "diffusers"

    def skeleton_key(self, model: ModelFolder) -> str:
        files = (PIPELINE_INDEX, *(f"{part}/config.json" for part in PARTS), SCHEDULER)
        return digest_of(model.path, files, PIPELINE, model.tensors)

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        folder, tensors = model.path, model.tensors
        check_index(folder)
        diffusers = _diffusers()
        stored = {tensor.name: tensor.shape for tensor in tensors}
        encoder, encoder_slots = build_transformer(
            folder / "text_encoder", "CLIPTextModel", _of_part(tensors, "text_encoder/"), device
        )
        slots = [
            ParameterSlot(each.entries, each.name, each.empty, f"text_encoder/{each.stored}")
            for each in encoder_slots
        ]
        built = {}
        for part in ("unet", "vae"):
            network = _network(getattr(diffusers, PARTS[part][1]), folder / part)
            slots += _find_slots(network, f"{part}/", stored)
            network.eval().requires_grad_(requires_grad=False)
            built[part] = network
        kind, config = _scheduler(diffusers, folder)
        pipeline = Pipeline(encoder, built["unet"], built["vae"], kind, config)
        return Skeleton(key, pipeline, tuple(slots))


def _diffusers() -> ModuleType:
    try:
        import diffusers
    except ImportError as error:
        raise LoadFailed(
            "the model generates images, which needs diffusers: install the extra text-to-image"
            " (pip install 'pilotlight[text-to-image]') in the pods' environment"
        ) from error
    module: ModuleType = diffusers
    return module


def _network(kind: Any, folder: Path) -> Any:
    config = read_json(folder / "config.json")
    with without_memory(f"no {kind.__name__} can be built from {folder.name}/config.json"):
        return kind.from_config(config)


def _scheduler(diffusers: ModuleType, folder: Path) -> tuple[Any, Mapping[str, Any]]:
    config = read_json(folder / SCHEDULER)
    name = str(config.get("_class_name"))
    kind: Any = getattr(diffusers, name, None) if name.endswith("Scheduler") else None
    is_scheduler = isinstance(kind, type) and issubclass(kind, diffusers.SchedulerMixin)
    if not is_scheduler:
        raise ModelInvalid(
            f"scheduler_config.json names {name[:80]!r}, which is no scheduler of diffusers"
        )
    try:
        kind.from_config(dict(config))
    except Exception as error:
        raise ModelInvalid(f"scheduler_config.json is not valid for {name}: {error}") from error
    return kind, config


def _find_slots(
    network: Any, prefix: str, stored: Mapping[str, tuple[int, ...]]
) -> list[ParameterSlot]:
    slots, wrong = [], []
    for name, empty in network.state_dict(keep_vars=True).items():
        found = next((each for each in _names_of(prefix + name) if each in stored), None)
        if found is None:
            wrong.append(f"{name} is missing")
        elif stored[found] != tuple(empty.shape):
            wrong.append(f"{name} has shape {list(stored[found])}, {list(empty.shape)} is needed")
        else:
            slots.append(parameter_slot(network, name, found))
    if wrong:
        raise ModelInvalid(f"weights do not fit {prefix}config.json: {'; '.join(wrong[:3])}")
    return slots


def _names_of(name: str) -> list[str]:
    old = name
    for new, before in OLD_NAMES.items():
        old = old.replace(new, before)
    return [name, old]


def _of_part(tensors: Sequence[StoredTensor], prefix: str) -> list[StoredTensor]:
    return [
        replace(tensor, name=tensor.name.removeprefix(prefix))
        for tensor in tensors
        if tensor.name.startswith(prefix)
    ]


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
