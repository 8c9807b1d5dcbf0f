"""Tensors as they travel: named arrays with an Open Inference Protocol datatype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NUMPY_OF: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
BYTES = "BYTES"
"""Datatype of strings; its arrays hold `bytes` objects."""

OIP_OF: Mapping[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY_OF.items()}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named array; `data` has dtype object (of bytes) where the datatype is BYTES."""

    name: str
    datatype: str
    data: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        return self.data.shape


def numeric_tensor(name: str, data: npt.NDArray[Any]) -> Tensor:
    """A tensor with the datatype of its array."""
    return Tensor(name, OIP_OF[data.dtype], data)


def bytes_tensor(name: str, values: Sequence[bytes]) -> Tensor:
    """A one-dimensional tensor of strings."""
    data = np.empty(len(values), dtype=object)
    data[:] = values
    return Tensor(name, BYTES, data)


def only_tensor(tensors: Sequence[Tensor], name: str) -> Tensor:
    """The one input a model takes; raises InvalidRequest where another was sent."""
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    if len(tensors) == 1:  # a single input needs no agreement on its name
        return tensors[0]
    seen = sorted(tensor.name for tensor in tensors)
    raise InvalidRequest(f"inputs must hold a tensor named {name!r}, were {seen}")


def named_arrays(tensors: Sequence[Tensor]) -> dict[str, npt.NDArray[Any]]:
    """The arrays by their tensors' names."""
    return {tensor.name: tensor.data for tensor in tensors}
