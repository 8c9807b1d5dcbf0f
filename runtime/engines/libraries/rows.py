"""Rows of features for libraries: what a tabular model takes and answers, checks, conversion.

Rows are one matrix, or one tensor per column. Imports no torch, which no process of estimators has.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import (
    BYTES,
    DATATYPE_OF,
    NUMPY_OF,
    Tensor,
    bytes_tensor,
    plain_values,
)
from common.shown_value import shown
from runtime.errors import EngineMissing, InferenceFailed, ModelInvalid

OUTPUT: Final = "output-0"
"""The name of the output, as of KServe's servers."""
INPUT: Final = "input-0"
"""The name of a matrix of features, or of texts; a client may give it any other one."""


def is_matrix(inputs: Sequence[Tensor]) -> bool:
    """Whether the rows are one tensor, not one tensor per column."""
    return len(inputs) == 1 and len(inputs[0].shape) == 2


def check_features(
    inputs: Sequence[Tensor],
    *,
    count: int | None,
    names: Sequence[str] | None,
    may_lack_columns: bool = False,
) -> None:
    """Raise InvalidRequest unless the inputs are rows of the model's features.

    Args:
        inputs: one tensor of shape [rows, features], or one of shape [rows] per column.
        count: of the model's features; None: not known.
        names: of the model's features; None: columns are taken in the order given.
        may_lack_columns: whether columns of these names may be missing (`numbers`).
    """
    if is_matrix(inputs):
        seen = inputs[0].shape[1]
        if count is not None and seen != count:
            raise InvalidRequest(
                f"each row must have {count} features, had {seen}"
                f" (input {inputs[0].name!r} of shape {list(inputs[0].shape)})"
            )
        return
    given = [tensor.name for tensor in inputs]
    if names is not None:
        absent, extra = sorted(set(names) - set(given)), sorted(set(given) - set(names))
        missing = [] if may_lack_columns else absent
        if missing or extra:
            raise InvalidRequest(
                f"the model takes one tensor of shape [rows, {len(names)}], or the columns"
                f" {shown(list(names))}; missing {missing[:8]}, unknown {extra[:8]}"
            )
    elif count is not None and len(given) != count:
        raise InvalidRequest(
            f"the model takes one tensor of shape [rows, {count}], or {count} columns;"
            f" got {len(given)} of shape {list(inputs[0].shape)}"
        )


def numbers(
    inputs: Sequence[Tensor], names: Sequence[str] | None, dtype: type[np.floating[Any]]
) -> npt.NDArray[Any]:
    """The rows as one matrix, columns in the order of `names`; raises InvalidRequest for text.

    A column that is not there holds missing numbers (NaN).
    """
    text = [tensor.name for tensor in inputs if tensor.datatype == BYTES]
    if text:
        raise InvalidRequest(f"features must be numbers; {text[:8]} held strings")
    if is_matrix(inputs):
        return np.ascontiguousarray(inputs[0].data, dtype)
    order = names if names is not None else [tensor.name for tensor in inputs]
    place = {name: index for index, name in enumerate(order)}
    rows = np.full((inputs[0].shape[0], len(order)), np.nan, dtype)
    for tensor in inputs:
        rows[:, place[tensor.name]] = tensor.data.reshape(-1)
    return rows


def output_tensor(values: npt.NDArray[Any], name: str = OUTPUT) -> Tensor:
    """A tensor of the library's result; raises InferenceFailed for types without a datatype."""
    values = np.ascontiguousarray(values).reshape(values.shape)
    if values.dtype in DATATYPE_OF:
        return Tensor(name, DATATYPE_OF[values.dtype], values)
    if values.dtype.kind in "UO" and all(isinstance(each, str) for each in values.flat):
        flat = bytes_tensor(name, [each.encode() for each in values.flat])
        return Tensor(name, BYTES, flat.data.reshape(values.shape))
    raise InferenceFailed(f"the model gave values of type {values.dtype}, which have no datatype")


@dataclass(frozen=True, slots=True)
class Field:
    """An input or output, without its number of rows."""

    name: str
    datatype: str = "FP64"
    row_shape: tuple[int, ...] = ()

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.row_shape]}

    def rows(self, count: int) -> Tensor:
        """So many rows of zeros, of a field of features."""
        shape = (count, *self.row_shape)
        return Tensor(self.name, self.datatype, np.zeros(shape, NUMPY_OF[self.datatype]))


@dataclass(frozen=True, slots=True)
class TabularSignature:
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...] = ()

    def answering(self, outputs: Sequence[Tensor]) -> TabularSignature:
        """The same inputs, with outputs like these."""
        fields = (Field(each.name, each.datatype, each.shape[1:]) for each in outputs)
        return replace(self, outputs=tuple(fields))


def matrix(features: int) -> tuple[Field, ...]:
    return (Field(INPUT, row_shape=(features,)),)


def columns(names: Sequence[str]) -> tuple[Field, ...]:
    return tuple(Field(name) for name in names)


def one_line(error: BaseException) -> str:
    """The text of a library's error, for a message of ours: on one line, 500 characters at most."""
    return " ".join(str(error).split())[:500]


def import_library(module: str, extra: str) -> ModuleType:
    """An optional library, imported with its first model; raises EngineMissing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EngineMissing(
            f"the pod has no {module} ({error}); add it to the image with"
            f" pip install 'pilotlight[{extra}]'"
        ) from error


class SklearnModel:
    """Answers `predict`, or `predict_proba` where the declared task is tabular classification."""

    def __init__(self, estimator: Any, *, wants_probabilities: bool) -> None:
        method = "predict_proba" if wants_probabilities else "predict"
        if not hasattr(estimator, method):
            raise ModelInvalid(f"the {type(estimator).__name__} has no method {method}")
        self._predict = getattr(estimator, method)
        names = getattr(estimator, "feature_names_in_", None)
        self._names: Sequence[str] | None = None if names is None else [str(each) for each in names]
        self._count: int | None = getattr(estimator, "n_features_in_", None)
        centers = getattr(estimator, "cluster_centers_", None)
        self._dtype = None if centers is None else centers.dtype
        """Of rows that k-means takes, which refuses others than it was trained with."""

    def check(self, inputs: Sequence[Tensor]) -> None:
        if _are_texts(inputs) and self._count is None:
            return  # a vectoriser takes texts
        check_features(inputs, count=self._count, names=self._names)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        try:
            found = self._predict(self._rows(inputs))
        except (ValueError, TypeError, IndexError, KeyError) as error:
            raise InvalidRequest(f"the model refused these rows: {one_line(error)}") from error
        if isinstance(found, list):  # one array of probabilities per output
            return tuple(
                output_tensor(np.asarray(each), f"output-{index}")
                for index, each in enumerate(found)
            )
        return (output_tensor(np.asarray(found)),)

    def _rows(self, inputs: Sequence[Tensor]) -> Any:
        """A matrix, a list of texts, or a data frame for a model that knows its columns."""
        if is_matrix(inputs) and self._names is None:
            rows = plain_values(inputs[0])
            return rows if self._dtype is None else rows.astype(self._dtype, copy=False)
        if _are_texts(inputs):
            return list(plain_values(inputs[0]))
        pandas = import_library("pandas", "sklearn")
        if is_matrix(inputs):
            return pandas.DataFrame(plain_values(inputs[0]), columns=self._names)
        columns = {tensor.name: plain_values(tensor).reshape(-1) for tensor in inputs}
        if self._names is None:
            return pandas.DataFrame(columns).to_numpy()
        return pandas.DataFrame({name: columns[name] for name in self._names})


def _are_texts(inputs: Sequence[Tensor]) -> bool:
    """Whether the rows are one text each."""
    return len(inputs) == 1 and len(inputs[0].shape) == 1 and inputs[0].datatype == BYTES
