"""An estimator of scikit-learn that answers requests, wherever it was read. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.engines.libraries.optional_library import import_library, one_line
from runtime.engines.libraries.rows import (
    check_features,
    is_matrix,
    output_tensor,
)
from runtime.errors import InvalidRequest, ModelInvalid
from runtime.wire.tensors import BYTES, plain_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.wire.tensors import Tensor


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
