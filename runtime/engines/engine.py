"""The interface of all engines: what builds, loads, runs and unloads models of one kind.

An engine is chosen by the files of a model's folder (`building.engine_of`). Its `Skeleton` is a
model without weights: `attach` loads them, `network` then runs batches, `detach` frees them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from registry.domain.model import Task

if TYPE_CHECKING:
    import torch

    from runtime.engines.skeletons import Skeleton
    from runtime.weights.safetensors_files import StoredTensor


DEFAULT_POD_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model to build: its small files, its declared task, and what its weights hold."""

    path: Path
    task: Task | None
    tensors: Sequence[StoredTensor]
    dtype: torch.dtype | None = None
    """Of its weights, where it is not that of its configuration."""
    pod_bytes: int = DEFAULT_POD_BYTES
    """Budget of all models of the pod."""


class Engine(ABC):
    """Stateless. Methods block and raise LoadFailed."""

    name: str
    takes_dtype = False
    """Whether its weights may be converted to another type."""
    uses_device = True
    """Whether weights go to the pod's device; else they stay in the memory of the CPU."""

    @abstractmethod
    def skeleton_key(self, model: ModelFolder) -> str:
        """Equal for models that can use one skeleton."""

    @abstractmethod
    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        """The model without weights; `threads` of one inference."""

    def working_bytes(self, weight_bytes: int) -> int:
        """Memory that a loaded model takes beside its weights' bytes, estimated."""
        return 0
