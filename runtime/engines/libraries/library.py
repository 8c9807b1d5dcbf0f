"""Engines of models that a library loads from one file: XGBoost and LightGBM."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
import torch

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import Tensor
from runtime.engines.engine import Engine, LoadedSkeleton, ModelFolder, Skeleton
from runtime.engines.libraries.boosters import check_lightgbm, check_xgboost
from runtime.engines.libraries.rows import (
    TabularSignature,
    check_features,
    columns,
    import_library,
    matrix,
    numbers,
    one_line,
    output_tensor,
)
from runtime.errors import EngineMissing, InferenceFailed, ModelInvalid

_DEFAULT_NAMES: Final = re.compile(r"Column_\d+")
"""LightGBM's, of features without names."""

Load: TypeAlias = "Callable[[memoryview, ModelFolder, torch.device, int], Any]"
"""From the mapped file, valid only during the call, on a device, with so many threads.

Raises any error of the library, or LoadFailed.
"""


class LibraryEngine(Engine):
    """The engine of a model in one file, whose weights stay in the memory of the CPU."""

    uses_device = False

    def __init__(
        self, name: str, path: Path, load: Load, *, fixed_bytes: int, memory_ratio: float = 1.0
    ) -> None:
        """A loaded model takes `memory_ratio` times its file and `fixed_bytes`: estimates."""
        self.name = name
        self._path, self._load = path, load
        self._fixed_bytes, self._memory_ratio = fixed_bytes, memory_ratio

    def skeleton_key(self, model: ModelFolder) -> str:
        return self.name

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        return LoadedSkeleton(
            key, lambda weights: self._load_checked(weights, model, device, threads)
        )

    def working_bytes(self, weight_bytes: int) -> int:
        """Bytes of a loaded model beyond the file's size, which is always reserved."""
        return self._fixed_bytes + int((self._memory_ratio - 1.0) * weight_bytes)

    def _load_checked(
        self,
        weights: Mapping[str, torch.Tensor],
        model: ModelFolder,
        device: torch.device,
        threads: int,
    ) -> Any:
        content = weights[self._path.name].numpy().data
        try:
            return self._load(content, model, device, threads)
        except (EngineMissing, ModelInvalid, MemoryError):
            raise
        except Exception as error:  # each library has errors of its own
            raise ModelInvalid(
                f"{self.name} cannot read {self._path.name}:"
                f" {type(error).__name__}: {one_line(error)}"
            ) from None


class BoosterModel:
    """Answers as `Booster.predict` does: margins, probabilities, values or classes.

    `infer` runs in the device's thread only.
    """

    def __init__(
        self,
        predict: Callable[[Any], Any],
        names: Sequence[str] | None,
        count: int,
        *,
        dtype: type[np.floating[Any]],
        error: type[Exception],
    ) -> None:
        """`error`: the library's."""
        self._predict, self._names, self._count = predict, names, count
        self._dtype, self._error = dtype, error
        is_named = names is not None and not all(map(_DEFAULT_NAMES.fullmatch, names))
        self.signature = TabularSignature(columns(names or ()) if is_named else matrix(count))

    def check(self, inputs: Sequence[Tensor]) -> None:
        """Raise InvalidRequest if the model does not take these inputs."""
        check_features(inputs, count=self._count or None, names=self._names, may_lack_columns=True)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs, row by row; raises InvalidRequest."""
        rows = numbers(inputs, self._names, self._dtype)
        try:
            return (output_tensor(np.asarray(self._predict(rows))),)
        except (self._error, ValueError) as error:
            raise InferenceFailed(f"the booster: {error}") from error


def xgboost_engine(path: Path) -> LibraryEngine:
    return LibraryEngine("xgboost", path, _load_xgboost, fixed_bytes=256 * 1024)


def _load_xgboost(
    content: memoryview, model: ModelFolder, device: torch.device, threads: int
) -> BoosterModel:
    check_xgboost(content.tobytes())
    xgboost = import_library("xgboost", "xgboost")
    booster = xgboost.Booster({"nthread": threads}, model_file=bytearray(content))
    names = booster.feature_names
    learner = orjson.loads(booster.save_config())["learner"]
    is_linear = learner["gradient_booster"]["name"] == "gblinear"

    def predict(rows: Any) -> Any:
        if np.isinf(rows).any():
            raise InvalidRequest("features must be finite numbers or NaN, one was infinite")
        if is_linear:
            return booster.predict(xgboost.DMatrix(rows, nthread=threads, feature_names=names))
        # Same values, without a copy into a DMatrix.
        return booster.inplace_predict(rows, validate_features=False)

    count, error = int(booster.num_features()), xgboost.core.XGBoostError
    return BoosterModel(predict, names, count, dtype=np.float32, error=error)


def lightgbm_engine(path: Path) -> LibraryEngine:
    return LibraryEngine("lightgbm", path, _load_lightgbm, fixed_bytes=256 * 1024)


def _load_lightgbm(
    content: memoryview, model: ModelFolder, device: torch.device, threads: int
) -> BoosterModel:
    text = str(content, "utf-8")
    check_lightgbm(text)
    lightgbm = import_library("lightgbm", "lightgbm")
    booster = lightgbm.Booster(model_str=text)
    names, error = booster.feature_name(), lightgbm.basic.LightGBMError
    predict = partial(booster.predict, num_threads=threads)
    return BoosterModel(predict, names, len(names), dtype=np.float64, error=error)
