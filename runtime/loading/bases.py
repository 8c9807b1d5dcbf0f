"""The models whose weights adapters share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.model import ModelName
from runtime.errors import LoadFailed, ModelInvalid
from runtime.storage.listing import ADAPTER_CONFIG

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch

    from registry.domain.model import ModelSpec
    from runtime.weights.safetensors_files import StoredTensor
    from runtime.weights.slab import DeviceWeights


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """The weights of a model on the device, for its adapters."""

    weights: DeviceWeights
    stored: Sequence[StoredTensor]
    dtype: torch.dtype | None
    """Of the weights, where it is not that of the configuration."""


@dataclass(frozen=True, slots=True)
class Bases:
    """Finds bases among the declared models."""

    find: Callable[[ModelName], ModelSpec | None] = lambda _name: None

    def of(self, spec: ModelSpec) -> ModelSpec | None:
        """The base of an adapter, None for other models; raises LoadFailed."""
        if not spec.base:
            return None
        name = ModelName(spec.name.namespace, spec.base)
        base = self.find(name)
        if base is None:
            raise LoadFailed(
                f"{spec.key} is an adapter of {name}, which is not declared: apply that model, or"
                " correct pilotlight.io/base-model"
            )
        if base.base:
            raise LoadFailed(
                f"{spec.key} is an adapter of {name}, which is an adapter itself (of {base.base});"
                f" pilotlight.io/base-model must name a whole model"
            )
        return base


def check_is_whole(folder: Path) -> None:
    """Raise ModelInvalid if the folder holds an adapter, but its model names no base."""
    if (folder / ADAPTER_CONFIG).exists() and not (folder / "config.json").exists():
        raise ModelInvalid(
            f"the model is an adapter ({ADAPTER_CONFIG}, no config.json): declare its base as a"
            " model of the namespace, and name that with the annotation pilotlight.io/base-model"
        )
