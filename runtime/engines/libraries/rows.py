"""Rows of features for libraries: one matrix, or one tensor per column. Checks and conversion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from registry.shown_value import shown
from runtime.errors import InferenceFailed, InvalidRequest
from runtime.wire.tensors import BYTES, DATATYPE_OF, Tensor, bytes_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

OUTPUT: Final = "output-0"
"""The name of the output, as of KServe's servers."""


def is_matrix(inputs: Sequence[Tensor]) -> bool:
    """Whether the rows are one tensor, not one tensor per column."""
    return len(inputs) == 1 and len(inputs[0].shape) == 2


def check_features(
    inputs: Sequence[Tensor], *, count: int | None, names: Sequence[str] | None
) -> None:
    """Raise InvalidRequest unless the inputs are rows of the model's features.

    Args:
        inputs: one tensor of shape [rows, features], or one of shape [rows] per column.
        count: of the model's features; None: not known.
        names: of the model's features; None: columns are taken in the order given.
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
        missing, extra = sorted(set(names) - set(given)), sorted(set(given) - set(names))
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
    """The rows as one matrix, columns in the order of `names`; raises InvalidRequest for text."""
    text = [tensor.name for tensor in inputs if tensor.datatype == BYTES]
    if text:
        raise InvalidRequest(f"features must be numbers; {text[:8]} held strings")
    if is_matrix(inputs):
        return np.ascontiguousarray(inputs[0].data, dtype)
    by_name = {tensor.name: tensor.data for tensor in inputs}
    order = names if names is not None else list(by_name)
    return np.column_stack([by_name[name].reshape(-1) for name in order]).astype(dtype)


def output_tensor(values: npt.NDArray[Any], name: str = OUTPUT) -> Tensor:
    """A tensor of the library's result; raises InferenceFailed for types without a datatype."""
    values = np.ascontiguousarray(values).reshape(values.shape)
    if values.dtype in DATATYPE_OF:
        return Tensor(name, DATATYPE_OF[values.dtype], values)
    if values.dtype.kind in "UO" and all(isinstance(each, str) for each in values.flat):
        flat = bytes_tensor(name, [each.encode() for each in values.flat])
        return Tensor(name, BYTES, flat.data.reshape(values.shape))
    raise InferenceFailed(f"the model gave values of type {values.dtype}, which have no datatype")
