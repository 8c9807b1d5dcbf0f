"""Engines of models that a library loads from one file: XGBoost, LightGBM, scikit-learn (skops)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import Tensor
from registry.domain.model import Task
from runtime.engines.engine import Engine, LoadedSkeleton, ModelFolder, Skeleton
from runtime.engines.libraries.boosters import check_lightgbm, check_xgboost
from runtime.engines.libraries.rows import (
    SklearnModel,
    TabularSignature,
    check_features,
    columns,
    import_library,
    lightgbm_signature,
    matrix,
    numbers,
    one_line,
    output_tensor,
)
from runtime.engines.libraries.skops_file import read_estimator
from runtime.errors import EngineMissing, InferenceFailed, ModelInvalid

if TYPE_CHECKING:
    import torch


class LibraryModel(Protocol):
    """A loaded model. `infer` runs in the device's thread only."""

    signature: TabularSignature
    """Its inputs; its outputs are known from its first inference."""

    def check(self, inputs: Sequence[Tensor]) -> None:
        """Raise InvalidRequest if the model does not take these inputs."""

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs, row by row; raises InvalidRequest."""


class LibraryEngine(Engine):
    """An engine of models in one file, whose weights stay in the memory of the CPU."""

    uses_device = False
    memory_ratio = 1.0
    """Bytes of a loaded model per byte of its file; an estimate, not measured."""
    fixed_bytes = 0
    """Bytes of a loaded model in addition, whatever its size; an estimate, too."""

    def __init__(self, path: Path) -> None:
        self.path = path

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
        return self.fixed_bytes + int(max(0.0, self.memory_ratio - 1.0) * weight_bytes)

    @abstractmethod
    def load(
        self, content: memoryview, model: ModelFolder, *, device: torch.device, threads: int
    ) -> Any:
        """Load the model: a `LibraryModel`, or an ONNX session.

        `content` is the mapped file, valid only during the call. Raises any error of the library,
        or LoadFailed.
        """

    def _load_checked(
        self,
        weights: Mapping[str, torch.Tensor],
        model: ModelFolder,
        device: torch.device,
        threads: int,
    ) -> Any:
        content = weights[self.path.name].numpy().data
        try:
            return self.load(content, model, device=device, threads=threads)
        except (EngineMissing, ModelInvalid, MemoryError):
            raise
        except Exception as error:  # each library has errors of its own
            raise ModelInvalid(
                f"{self.name} cannot read {self.path.name}:"
                f" {type(error).__name__}: {one_line(error)}"
            ) from None


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
        self.signature = TabularSignature(
            columns(self._names) if self._names else matrix(self._count)
        )

    def check(self, inputs: Sequence[Tensor]) -> None:
        check_features(inputs, count=self._count or None, names=self._names, may_lack_columns=True)

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
            # Same values, without a copy into a DMatrix.
            found = self._booster.inplace_predict(rows, validate_features=False)
        except (self._xgboost.core.XGBoostError, ValueError) as error:
            raise InferenceFailed(f"xgboost: {error}") from error
        return (output_tensor(np.asarray(found)),)


class LightgbmEngine(LibraryEngine):
    name = "lightgbm"
    fixed_bytes = 256 * 1024

    def load(
        self, content: memoryview, model: ModelFolder, *, device: torch.device, threads: int
    ) -> LibraryModel:
        text = str(content, "utf-8")
        check_lightgbm(text)
        lightgbm = import_library("lightgbm", "lightgbm")
        signature = lightgbm_signature(text.partition("\nTree=")[0])
        return LightgbmModel(lightgbm, lightgbm.Booster(model_str=text), threads, signature)


class LightgbmModel:
    """Answers as `Booster.predict` does: probabilities for classifiers, values for regressions."""

    def __init__(
        self, lightgbm: Any, booster: Any, threads: int, signature: TabularSignature
    ) -> None:
        self.signature = signature
        self._lightgbm, self._booster, self._threads = lightgbm, booster, threads
        self._names: Sequence[str] = booster.feature_name()

    def check(self, inputs: Sequence[Tensor]) -> None:
        check_features(inputs, count=len(self._names), names=self._names, may_lack_columns=True)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        rows = numbers(inputs, self._names, np.float64)
        try:
            found = self._booster.predict(rows, num_threads=self._threads)
        except (self._lightgbm.basic.LightGBMError, ValueError) as error:
            raise InferenceFailed(f"lightgbm: {error}") from error
        return (output_tensor(np.asarray(found)),)


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
