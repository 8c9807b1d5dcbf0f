"""The engine of pickled estimators, in pools with `--allow-pickle`: their code runs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from registry.domain.model import ModelSpec, Task
from runtime.engines.engine import Engine, ModelFolder
from runtime.engines.skeletons import LoadedSkeleton, Skeleton
from runtime.errors import ModelUnsupported
from runtime.storage.listing import PICKLE_ADVICE

if TYPE_CHECKING:
    import torch

    from runtime.sandbox.estimators import Estimators


class PickleEngine(Engine):
    """The engine of one model."""

    name = "sklearn"
    uses_device = False

    def __init__(self, path: Path, spec: ModelSpec, estimators: Estimators | None) -> None:
        """Raise ModelUnsupported if the pool serves no pickles: its disk may hold one of before."""
        if estimators is None:
            raise ModelUnsupported(f"the model has {path.name}: {PICKLE_ADVICE}")
        self._path, self._spec, self._estimators = path, spec, estimators

    def skeleton_key(self, model: ModelFolder) -> str:
        return f"pickle {self._spec.key}"

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        return LoadedSkeleton(
            key,
            lambda weights: self._estimators.load_in_thread(
                self._spec.key,
                weights[self._path.name].numpy().data,
                wants_probabilities=self._spec.task is Task.TABULAR_CLASSIFICATION,
            ),
            self._estimators.unload_soon,
            has_inferred=True,
        )
