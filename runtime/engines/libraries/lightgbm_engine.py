"""The engine of LightGBM's own text files: `.txt`, `.bst`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.engines.libraries.library import LibraryEngine, LibraryModel
from runtime.engines.libraries.lightgbm_checks import check_lightgbm
from runtime.engines.libraries.optional_library import import_library
from runtime.engines.libraries.rows import check_features, numbers, output_tensor
from runtime.errors import InferenceFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from runtime.engines.engine import ModelFolder
    from runtime.wire.tensors import Tensor


class LightgbmEngine(LibraryEngine):
    name = "lightgbm"
    fixed_bytes = 256 * 1024

    def load(
        self, content: memoryview, model: ModelFolder, *, device: torch.device, threads: int
    ) -> LibraryModel:
        text = str(content, "utf-8")
        check_lightgbm(text)
        lightgbm = import_library("lightgbm", "lightgbm")
        return LightgbmModel(lightgbm, lightgbm.Booster(model_str=text), threads)


class LightgbmModel:
    """Answers as `Booster.predict` does: probabilities for classifiers, values for regressions."""

    def __init__(self, lightgbm: Any, booster: Any, threads: int) -> None:
        self._lightgbm, self._booster, self._threads = lightgbm, booster, threads
        self._names: Sequence[str] = booster.feature_name()

    def check(self, inputs: Sequence[Tensor]) -> None:
        check_features(inputs, count=len(self._names), names=self._names)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        rows = numbers(inputs, self._names, np.float64)
        try:
            found = self._booster.predict(rows, num_threads=self._threads)
        except (self._lightgbm.basic.LightGBMError, ValueError) as error:
            raise InferenceFailed(f"lightgbm: {error}") from error
        return (output_tensor(np.asarray(found)),)
