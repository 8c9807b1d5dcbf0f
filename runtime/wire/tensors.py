"""Tensors as they travel: named arrays with an Open Inference Protocol datatype."""

from __future__ import annotations

import math
import reprlib
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
BF16 = "BF16"
"""Numpy has no such type: its arrays are float32, the upper half of whose bits travels."""
DATATYPES = (*NUMPY_OF, BF16, BYTES)
ONLY_RAW = frozenset({"FP16", BF16})
"""Datatypes that the protocol has as bytes only."""

OIP_OF: Mapping[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY_OF.items()}

MOST_DIMENSIONS = 32
MOST_ELEMENTS = 2**40
"""Far above what a body can hold; what is claimed beyond it is a mistake."""
MAX_ITEMS = 1024
"""Instances of one request."""


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


@dataclass(frozen=True, slots=True)
class Description:
    """What a request says of one of its tensors, checked; `place` is where, for messages."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    place: str

    @property
    def count(self) -> int:
        """Elements that the shape asks for."""
        return math.prod(self.shape)


def described(name: Any, datatype: Any, shape: Any, place: str) -> Description:
    """A tensor's description; raises InvalidRequest."""
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{place}: 'name' must be a string, was {reprlib.repr(name)}")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise InvalidRequest(
            f"{place}: 'datatype' must be one of {', '.join(DATATYPES)},"
            f" was {reprlib.repr(datatype)}"
        )
    if not _is_shape(shape):
        raise InvalidRequest(
            f"{place}: 'shape' must be a list of at most {MOST_DIMENSIONS} sizes of 0 or more,"
            f" together at most {MOST_ELEMENTS} elements, was {reprlib.repr(shape)}"
        )
    return Description(name, datatype, tuple(shape), place)


def _is_shape(shape: Any) -> bool:
    """Whether numpy takes it, also where a size of 0 hides how large the others are."""
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        return False
    if not all(type(size) is int and 0 <= size <= MOST_ELEMENTS for size in shape):
        return False
    return bool(math.prod(max(size, 1) for size in shape) <= MOST_ELEMENTS)


def check_item_count(count: int) -> None:
    """Raise InvalidRequest for a request without items, or with more than `MAX_ITEMS`."""
    if not 0 < count <= MAX_ITEMS:
        raise InvalidRequest(f"a request must hold 1 to {MAX_ITEMS} items, held {count}")


def check_names_differ(names: Sequence[str], where: str) -> None:
    """Raise InvalidRequest where two tensors of a list have one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidRequest(f"{where} must differ in name, two are {reprlib.repr(name)}")
        seen.add(name)


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
    seen = reprlib.repr(sorted(tensor.name for tensor in tensors))
    raise InvalidRequest(f"inputs must hold a tensor named {name!r}, were {seen}")


def named_arrays(tensors: Sequence[Tensor]) -> dict[str, npt.NDArray[Any]]:
    """The arrays by their tensors' names."""
    return {tensor.name: tensor.data for tensor in tensors}
