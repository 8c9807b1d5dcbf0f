"""The engine of pickled estimators, in pools with `--allow-pickle`: their code runs elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from registry.domain.model import Task
from runtime.engines.skeletons import Skeleton
from runtime.errors import ModelInvalid
from runtime.storage.library_files import PICKLE_ADVICE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from registry.domain.model import ModelSpec
    from runtime.engines.engine import ModelFolder
    from runtime.sandbox.estimators import Estimators


class PickleEngine:
    """The engine of one model."""

    name = "sklearn"
    takes_dtype = False
    uses_device = False

    def __init__(self, path: Path, spec: ModelSpec, estimators: Estimators | None) -> None:
        """Raise ModelInvalid if the pool serves no pickles: its disk may hold one of before."""
        if estimators is None:
            raise ModelInvalid(f"the model has {path.name}: {PICKLE_ADVICE}")
        self._path, self._spec, self._estimators = path, spec, estimators

    def skeleton_key(self, model: ModelFolder) -> str:
        return f"pickle {self._spec.key}"

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        return PickleSkeleton(key, self._path.name, self._spec, self._estimators)

    def working_bytes(self, weight_bytes: int) -> int:
        """A pickle takes its own size in memory, about; the pod measures what it really took."""
        return 0


class PickleSkeleton(Skeleton):
    """Attached while the namespace's process has the model."""

    copies_weights = True
    is_reusable = False

    def __init__(self, key: str, file: str, spec: ModelSpec, estimators: Estimators) -> None:
        super().__init__(key, None, ())
        self.has_inferred = True
        self._file, self._spec, self._estimators = file, spec, estimators

    def attach(self, weights: Mapping[str, Any]) -> None:
        """Load the model from its file's bytes; raises LoadFailed. Blocks."""
        self.network = self._estimators.load_in_thread(
            self._spec.key,
            weights[self._file].numpy().data,
            wants_probabilities=self._spec.task is Task.TABULAR_CLASSIFICATION,
        )

    def detach(self) -> None:
        if self.network is not None:
            self._estimators.unload_soon(self.network)
        self.network = None
