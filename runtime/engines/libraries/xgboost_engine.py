"""The engine of XGBoost's own files: `.json`, `.ubj`, `.bst`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from runtime.engines.libraries.library import LibraryEngine, LibraryModel
from runtime.engines.libraries.optional_library import import_library
from runtime.engines.libraries.rows import check_features, numbers, output_tensor
from runtime.engines.libraries.xgboost_checks import check_xgboost
from runtime.errors import InferenceFailed, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from runtime.engines.engine import ModelFolder
    from runtime.wire.tensors import Tensor


class XgboostEngine(LibraryEngine):
    name = "xgboost"
    fixed_bytes = 256 * 1024

    def load(
        self, content: memoryview, model: ModelFolder, *, device: torch.device, threads: int
    ) -> LibraryModel:
        check_xgboost(content.tobytes())
        xgboost = import_library("xgboost", "xgboost")
        booster = xgboost.Booster({"nthread": threads}, model_file=bytearray(content))
        return XgboostModel(xgboost, booster, threads)


class XgboostModel:
    """Answers as `Booster.predict` does: margins, probabilities or classes by its objective."""

    def __init__(self, xgboost: Any, booster: Any, threads: int) -> None:
        self._xgboost, self._booster, self._threads = xgboost, booster, threads
        self._names: Sequence[str] | None = booster.feature_names
        self._count = int(booster.num_features())
        learner = orjson.loads(booster.save_config())["learner"]
        self._is_linear = learner["gradient_booster"]["name"] == "gblinear"

    def check(self, inputs: Sequence[Tensor]) -> None:
        check_features(inputs, count=self._count or None, names=self._names)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        rows = numbers(inputs, self._names, np.float32)
        if np.isinf(rows).any():
            raise InvalidRequest("features must be finite numbers or NaN, one was infinite")
        try:
            if self._is_linear:
                matrix = self._xgboost.DMatrix(
                    rows, nthread=self._threads, feature_names=self._names
                )
                return (output_tensor(self._booster.predict(matrix)),)
            # No copy into a DMatrix; the same values.
            found = self._booster.inplace_predict(rows, validate_features=False)
        except (self._xgboost.core.XGBoostError, ValueError) as error:
            raise InferenceFailed(f"xgboost: {error}") from error
        return (output_tensor(np.asarray(found)),)
