"""A Stable Diffusion pipeline without weights: text encoder, denoiser, decoder and scheduler.

The parts are built from their configuration files by classes of transformers and diffusers.
diffusers is an optional extra, imported only when such a model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtime.engines.networks.configuration import read_json
from runtime.engines.networks.network import (
    build_transformer,
    digest_of,
    parameter_slot,
    without_memory,
)
from runtime.engines.skeletons import ParameterSlot, Skeleton
from runtime.errors import LoadFailed, ModelInvalid
from runtime.storage.listing import PIPELINE_INDEX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    import torch

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
        raise ModelInvalid(
            f"{PIPELINE_INDEX} names the pipeline {name!r}; only {PIPELINE} is supported"
        )
    for part, (library, kind) in PARTS.items():
        if index.get(part) != [library, kind]:
            raise ModelInvalid(
                f"{PIPELINE_INDEX} has {part} {index.get(part)!r}; only {[library, kind]} is"
                " supported"
            )


def pipeline_key(folder: Path, tensors: Sequence[StoredTensor]) -> str:
    """A key that is equal for models with the same configuration and tensors.

    Such models can share a skeleton.
    """
    files = (PIPELINE_INDEX, *(f"{part}/config.json" for part in PARTS), SCHEDULER)
    return digest_of(folder, files, PIPELINE, tensors)


def build_pipeline(
    folder: Path, tensors: Sequence[StoredTensor], *, key: str, device: torch.device
) -> Skeleton:
    """The pipeline without weights; raises LoadFailed. Blocks."""
    check_index(folder)
    diffusers = _diffusers()
    stored = {tensor.name: tensor.shape for tensor in tensors}
    encoder, encoder_slots = build_transformer(
        folder / "text_encoder", "CLIPTextModel", _without_prefix(stored, "text_encoder/"), device
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


def _without_prefix(
    stored: Mapping[str, tuple[int, ...]], prefix: str
) -> dict[str, tuple[int, ...]]:
    return {name.removeprefix(prefix): s for name, s in stored.items() if name.startswith(prefix)}
