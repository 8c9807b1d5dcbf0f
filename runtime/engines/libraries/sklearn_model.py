"""An estimator of scikit-learn that answers requests, wherever it was read. Imports no torch.

What it takes, with values of its columns, is known from the training of its encoders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import BYTES, Tensor, plain_values
from runtime.engines.libraries.rows import (
    Field,
    TabularSignature,
    check_features,
    import_library,
    is_matrix,
    matrix,
    one_line,
    output_tensor,
    texts,
)
from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    import numpy.typing as npt


A_TEXT: Final = np.asarray(["text"], dtype=object)
"""Of a column that a vectoriser takes."""


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
        self.signature = TabularSignature(self._inputs(estimator))

    def _inputs(self, estimator: Any) -> tuple[Field, ...]:
        if self._count is None:
            return texts()
        if self._names is None:
            return matrix(self._count)
        known = known_values(estimator, self._names, self._count)
        return tuple(_column(name, known.get(index)) for index, name in enumerate(self._names))

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


def _column(name: str, values: npt.NDArray[Any] | None) -> Field:
    """`values`: that the model knows of it, None if it takes any numbers."""
    if values is None:
        return Field(name)
    if is_text(values):
        return Field(name, BYTES, example=str(values[0]))
    return Field(name, example=float(values[0]))


def _are_texts(inputs: Sequence[Tensor]) -> bool:
    """Whether the rows are one text each."""
    return len(inputs) == 1 and len(inputs[0].shape) == 1 and inputs[0].datatype == BYTES


def known_values(
    estimator: Any, names: Sequence[str] | None, count: int
) -> dict[int, npt.NDArray[Any]]:
    """By index of a column: its categories, or what takes the place of a missing text.

    `names`: of the columns, where the model was trained on a table; `count`: of the columns.
    """
    found: dict[int, npt.NDArray[Any]] = {}
    first = _steps(estimator)[0]
    parts = getattr(first, "transformers_", None)
    if parts is None:
        return dict(enumerate(_values_of(first)))
    for _, part, chosen in parts:
        if isinstance(part, str):  # passthrough, drop
            continue
        indexes = _indexes(chosen, names, count)
        if isinstance(chosen, str):
            found[indexes[0]] = A_TEXT
        for step in _steps(part):
            found |= dict(zip(indexes, _values_of(step), strict=False))
    return {index: values for index, values in found.items() if len(values)}


def is_text(values: npt.NDArray[Any]) -> bool:
    return len(values) > 0 and isinstance(values[0], str)


def _steps(estimator: Any) -> list[Any]:
    return [step for _, step in getattr(estimator, "steps", [])] or [estimator]


def _values_of(step: Any) -> Iterator[npt.NDArray[Any]]:
    if (categories := getattr(step, "categories_", None)) is not None:
        yield from (np.asarray(each) for each in categories)
    elif np.asarray(getattr(step, "statistics_", 0.0)).dtype.hasobject:
        yield from (np.asarray([each], dtype=object) for each in step.statistics_)


def _indexes(chosen: Any, names: Sequence[str] | None, count: int) -> list[int]:
    """Of the columns that a part of a ColumnTransformer takes, however they were chosen."""
    if isinstance(chosen, str):
        return [list(names or ()).index(chosen)]
    if isinstance(chosen, (int, np.integer)):
        return [int(chosen)]
    if not isinstance(chosen, slice):
        chosen = list(chosen)
        if chosen and isinstance(chosen[0], str):
            return [list(names or ()).index(name) for name in chosen]
    return [int(each) for each in np.arange(count)[chosen]]
