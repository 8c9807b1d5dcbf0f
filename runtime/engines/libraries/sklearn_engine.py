"""The engine of scikit-learn's models in skops files, which name types and run no code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.model import Task
from runtime.engines.libraries.library import LibraryEngine, LibraryModel
from runtime.engines.libraries.optional_library import import_library
from runtime.engines.libraries.sklearn_model import SklearnModel
from runtime.engines.libraries.skops_file import read_estimator

if TYPE_CHECKING:
    import torch

    from runtime.engines.engine import ModelFolder


class SklearnEngine(LibraryEngine):
    name = "sklearn"
    memory_ratio = 3.0  # skops files are compressed
    fixed_bytes = 64 * 1024

    def load(
        self, content: memoryview, model: ModelFolder, *, device: torch.device, threads: int
    ) -> LibraryModel:
        import_library("sklearn", "sklearn")
        import_library("skops.io", "sklearn")
        estimator = read_estimator(content.tobytes(), self.path.name)
        return SklearnModel(
            estimator, wants_probabilities=model.task is Task.TABULAR_CLASSIFICATION
        )
