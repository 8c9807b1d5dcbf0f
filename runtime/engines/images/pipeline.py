"""A Stable Diffusion pipeline without weights: text encoder, denoiser, decoder and schedule.

The parts are built from their configuration files by classes that transformers and diffusers have
built in. diffusers is an extra, imported only when such a model is loaded.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from runtime.engines.networks.configuration import read_json
from runtime.engines.networks.network import SKELETON_LOCK, build_transformer
from runtime.engines.networks.skeletons import ParameterSlot, Skeleton
from runtime.errors import LoadFailed, ModelInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from runtime.weights.safetensors_files import StoredTensor

INDEX = "model_index.json"
SCHEDULE = "scheduler/scheduler_config.json"
PIPELINE = "StableDiffusionPipeline"
PARTS: Mapping[str, tuple[str, str]] = {
    "text_encoder": ("transformers", "CLIPTextModel"),
    "unet": ("diffusers", "UNet2DConditionModel"),
    "vae": ("diffusers", "AutoencoderKL"),
}
"""The parts that have weights, and the class each must be of."""
OLD_NAMES = {
    ".to_q.": ".query.",
    ".to_k.": ".key.",
    ".to_v.": ".value.",
    ".to_out.0.": ".proj_attn.",
}
"""What decoders of before 2023 call the weights of their attention."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts of one model. One user at a time."""

    text_encoder: Any
    unet: Any
    vae: Any
    scheduler_class: Any
    scheduler_config: Mapping[str, Any]

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        device: torch.device = next(self.unet.parameters()).device
        return device

    def new_scheduler(self) -> Any:
        """A schedule of its own for each image: it counts the steps."""
        return self.scheduler_class.from_config(dict(self.scheduler_config))


def is_pipeline(folder: Path) -> bool:
    """Whether a model's folder holds a pipeline of diffusers."""
    return (folder / INDEX).exists()


def check_index(folder: Path) -> None:
    """Raise ModelInvalid for a pipeline of another kind."""
    index = read_json(folder / INDEX)
    name = index.get("_class_name")
    if name != PIPELINE:
        raise ModelInvalid(f"{INDEX} names the pipeline {name!r}; {PIPELINE} is served")
    for part, (library, kind) in PARTS.items():
        if index.get(part) != [library, kind]:
            raise ModelInvalid(
                f"{INDEX} has {part} {index.get(part)!r}; {[library, kind]} is served"
            )


def signature_of_pipeline(folder: Path, tensors: Sequence[StoredTensor]) -> str:
    """What two models must have in common to use one skeleton: all configuration, all tensors."""
    digest = hashlib.sha256()
    for name in (INDEX, *(f"{part}/config.json" for part in PARTS), SCHEDULE):
        path = folder / name
        digest.update(path.read_bytes() if path.exists() else b"-")
    rows = sorted((tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
    digest.update(json.dumps(rows).encode())
    return digest.hexdigest()


def build_pipeline(
    folder: Path, tensors: Sequence[StoredTensor], *, signature: str, device: torch.device
) -> Skeleton:
    """The pipeline without weights; raises LoadFailed. Blocks."""
    check_index(folder)
    diffusers = _diffusers()
    stored = {tensor.name: tensor.shape for tensor in tensors}
    encoder, places = build_transformer(
        folder / "text_encoder", "CLIPTextModel", _below(stored, "text_encoder/"), device
    )
    placed = [
        ParameterSlot(each.entries, each.name, each.empty, f"text_encoder/{each.stored}")
        for each in places
    ]
    built = {}
    for part in ("unet", "vae"):
        network = _network(getattr(diffusers, PARTS[part][1]), folder / part)
        placed += _places(network, f"{part}/", stored)
        network.eval().requires_grad_(requires_grad=False)
        built[part] = network
    kind, config = _scheduler(diffusers, folder)
    pipeline = Pipeline(encoder, built["unet"], built["vae"], kind, config)
    return Skeleton(signature, pipeline, tuple(placed))


def _diffusers() -> ModuleType:
    try:
        import diffusers
    except ImportError as error:
        raise LoadFailed(
            "the model makes images, which needs diffusers: install the extra text-to-image"
            " (pip install 'pilotlight[text-to-image]') in the pods' environment"
        ) from error
    module: ModuleType = diffusers
    return module


def _network(kind: Any, folder: Path) -> Any:
    config = read_json(folder / "config.json")
    try:
        with SKELETON_LOCK, torch.device("meta"):
            return kind.from_config(config)
    except Exception as error:  # each part fails on an absurd shape in its own way
        raise ModelInvalid(
            f"{folder.name}/config.json gives no {kind.__name__}: {error}"
        ) from error


def _scheduler(diffusers: ModuleType, folder: Path) -> tuple[Any, Mapping[str, Any]]:
    config = read_json(folder / SCHEDULE)
    name = str(config.get("_class_name"))
    kind: Any = getattr(diffusers, name, None) if name.endswith("Scheduler") else None
    is_schedule = isinstance(kind, type) and issubclass(kind, diffusers.SchedulerMixin)
    if not is_schedule:
        raise ModelInvalid(f"scheduler_config.json names {name[:80]!r}, no scheduler of diffusers")
    try:
        kind.from_config(dict(config))
    except Exception as error:
        raise ModelInvalid(f"scheduler_config.json is not valid for {name}: {error}") from error
    return kind, config


def _places(
    network: Any, prefix: str, stored: Mapping[str, tuple[int, ...]]
) -> list[ParameterSlot]:
    places, wrong = [], []
    for name, empty in network.state_dict(keep_vars=True).items():
        path, _, leaf = name.rpartition(".")
        module = network.get_submodule(path)
        entries = module._parameters if leaf in module._parameters else module._buffers
        found = next((each for each in _names_of(prefix + name) if each in stored), None)
        if found is None:
            wrong.append(f"{name} is missing")
        elif stored[found] != tuple(empty.shape):
            wrong.append(f"{name} has shape {list(stored[found])}, {list(empty.shape)} is needed")
        else:
            places.append(ParameterSlot(entries, leaf, empty, found))
    if wrong:
        raise ModelInvalid(f"weights do not fit {prefix}config.json: {'; '.join(wrong[:3])}")
    return places


def _names_of(name: str) -> list[str]:
    old = name
    for new, before in OLD_NAMES.items():
        old = old.replace(new, before)
    return [name, old]


def _below(stored: Mapping[str, tuple[int, ...]], prefix: str) -> dict[str, tuple[int, ...]]:
    return {name.removeprefix(prefix): s for name, s in stored.items() if name.startswith(prefix)}
