"""Named arrays with a datatype of the Open Inference Protocol, and checks of their names.

References to tensors that a pod keeps are in the parameters of V2's inputs and outputs: as with
Triton's shared-memory extension, a tensor's entry then has name, datatype and shape, and says in
its `parameters` where the data is.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from common.inference_protocol import InvalidRequest
from common.shown_value import shown

KEPT_TENSOR: Final = "kept_tensor"
KEPT_AT: Final = "kept_at"
KEPT_BYTES: Final = "kept_bytes"
REFERENCE_FLAG: Final = b'"kept_tensor"'
MAX_IDENTITIES: Final = 128
"""Tensors that one request reads: a path of about 4 KiB."""
_IDENTITY: Final = re.compile(r"[0-9a-f]{32}")
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.\-\[\]:]{1,253}:\d{1,5}")


BYTES = "BYTES"
"""Datatype of strings; its arrays hold `bytes` objects."""
BF16 = "BF16"
"""Numpy has no such type: its arrays are float32, and the upper half of their bits is sent."""


@dataclass(frozen=True, slots=True)
class NumberType:
    """A type of numbers, as each format calls it; empty or 0: it is not read there."""

    datatype: str
    """Of V2."""
    numpy: str
    torch: str
    safetensors: str
    onnx: int
    """Code of `TensorProto.DataType`."""
    exported: int
    """Code of `torch._export.serde.schema.ScalarType`."""
    contents: str
    """The field of gRPC's `InferTensorContents`; empty: numbers are sent raw only."""


NUMBER_TYPES: Final = (
    NumberType("BOOL", "bool", "bool", "BOOL", 9, 12, "bool_contents"),
    NumberType("INT8", "int8", "int8", "I8", 3, 2, "int_contents"),
    NumberType("INT16", "int16", "int16", "I16", 5, 3, "int_contents"),
    NumberType("INT32", "int32", "int32", "I32", 6, 4, "int_contents"),
    NumberType("INT64", "int64", "int64", "I64", 7, 5, "int64_contents"),
    NumberType("UINT8", "uint8", "uint8", "U8", 2, 1, "uint_contents"),
    NumberType("UINT16", "uint16", "uint16", "U16", 4, 28, "uint_contents"),
    NumberType("UINT32", "uint32", "uint32", "U32", 12, 34, "uint_contents"),
    NumberType("UINT64", "uint64", "uint64", "U64", 13, 35, "uint64_contents"),
    NumberType("FP16", "float16", "float16", "F16", 10, 6, ""),
    NumberType("FP32", "float32", "float32", "F32", 1, 7, "fp32_contents"),
    NumberType("FP64", "float64", "float64", "F64", 11, 8, "fp64_contents"),
    NumberType(BF16, "", "bfloat16", "BF16", 0, 13, ""),
    NumberType("", "", "float8_e4m3fn", "F8_E4M3", 0, 29, ""),
    NumberType("", "", "float8_e5m2", "F8_E5M2", 0, 30, ""),
    NumberType("", "", "complex64", "C64", 0, 0, ""),
)
NUMPY_OF: Mapping[str, np.dtype[Any]] = {
    each.datatype: np.dtype(each.numpy) for each in NUMBER_TYPES if each.numpy
}
DATATYPES = (*NUMPY_OF, BF16, BYTES)
RAW_ONLY = frozenset(each.datatype for each in NUMBER_TYPES if each.datatype and not each.contents)
"""Datatypes without a JSON form or a typed field of gRPC."""
DATATYPE_OF: Mapping[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY_OF.items()}

MAX_DIMENSIONS = 32
MAX_ELEMENTS = 2**40
"""Far more than a body can hold: a larger shape is a mistake."""
MAX_ITEMS = 1024
"""Limit of the instances of one request."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named array; `data` has dtype object (of bytes) if the datatype is BYTES."""

    name: str
    datatype: str
    data: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def host_bytes(self) -> int:
        """Size of `data`, without its strings."""
        return self.data.nbytes

    def content(self) -> bytes:
        """Bytes that differ where the data differs."""
        return (
            repr(self.data.tolist()).encode() if self.data.dtype.hasobject else self.data.tobytes()
        )

    def renamed(self, name: str) -> Tensor:
        """The same data under another name."""
        return Tensor(name, self.datatype, self.data)

    def rows(self, begin: int, end: int) -> Tensor:
        """A part along the first dimension, without a copy."""
        return Tensor(self.name, self.datatype, self.data[begin:end])

    def is_finite(self) -> bool:
        """Whether it has neither NaN nor infinity."""
        return self.data.dtype.kind != "f" or bool(np.isfinite(self.data).all())


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The checked description of a tensor in a request; `path` locates it in error messages."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    path: str

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def parse_tensor_spec(name: Any, datatype: Any, shape: Any, path: str) -> TensorSpec:
    """A tensor's description; raises InvalidRequest."""
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{path}: 'name' must be a string, was {shown(name)}")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise InvalidRequest(
            f"{path}: 'datatype' must be one of {', '.join(DATATYPES)}, was {shown(datatype)}"
        )
    if not _is_shape(shape):
        raise InvalidRequest(
            f"{path}: 'shape' must be an array of at most {MAX_DIMENSIONS} sizes of 0 or more,"
            f" together at most {MAX_ELEMENTS} elements, was {shown(shape)}"
        )
    return TensorSpec(name, datatype, tuple(shape), path)


def does_not_fit(values: Sequence[float], field: str, spec: TensorSpec) -> InvalidRequest:
    """For numbers, one or more, that the datatype has no room for."""
    return InvalidRequest(
        f"{spec.path}: {field} does not fit {spec.datatype}: it has numbers from {min(values)} to"
        f" {max(values)}"
    )


def _is_shape(shape: Any) -> bool:
    """Whether numpy accepts the shape. A size of 0 counts as 1 in the number of elements."""
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        return False
    if not all(type(size) is int and 0 <= size <= MAX_ELEMENTS for size in shape):
        return False
    return bool(math.prod(max(size, 1) for size in shape) <= MAX_ELEMENTS)


def check_item_count(count: int, most: int = MAX_ITEMS) -> None:
    """Raise InvalidRequest for a request without items, or with more than `most`."""
    if not 0 < count <= most:
        raise InvalidRequest(f"a request must hold 1 to {most} items, held {count}")


def check_unique_names(names: Sequence[str], where: str) -> None:
    """Raise InvalidRequest if two tensors of a list have the same name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidRequest(f"{where} must differ in name, two are {shown(name)}")
        seen.add(name)


def numeric_tensor(name: str, data: npt.NDArray[Any]) -> Tensor:
    """A tensor with the datatype of its array."""
    return Tensor(name, DATATYPE_OF[data.dtype], data)


def bytes_tensor(name: str, values: Sequence[bytes]) -> Tensor:
    """A one-dimensional tensor of strings."""
    data = np.empty(len(values), dtype=object)
    data[:] = values
    return Tensor(name, BYTES, data)


def plain_values(tensor: Tensor) -> npt.NDArray[Any]:
    """An input's array, its strings as text; raises InvalidRequest for bytes that are not UTF-8."""
    if tensor.datatype != BYTES:
        return tensor.data
    decoded = np.empty(tensor.data.size, dtype=object)
    try:
        decoded[:] = [each.decode() for each in tensor.data.flat]
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"input {tensor.name!r} must hold UTF-8, but byte {error.start} of one is not"
        ) from error
    return decoded.reshape(tensor.shape)


def v1_values(tensor: Tensor) -> Any:
    """Nested lists for a V1 body; bytes that are not UTF-8 are `{"b64": …}`, V1's form of them."""
    if tensor.datatype != BYTES:
        return tensor.data.tolist()
    values = np.empty(tensor.data.size, dtype=object)
    values[:] = [_text_or_base64(each) for each in tensor.data.flat]
    return values.reshape(tensor.shape).tolist()


def _text_or_base64(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def single_input(tensors: Sequence[Tensor], name: str) -> Tensor:
    """The input of a model with one input: the tensor of this name, or the only tensor.

    Raises InvalidRequest if there are several tensors and none has the name.
    """
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    if len(tensors) == 1:  # a single input may have any name
        return tensors[0]
    seen = shown(sorted(tensor.name for tensor in tensors))
    raise InvalidRequest(f"inputs must hold a tensor named {name!r}, were {seen}")


def named_arrays(tensors: Sequence[Tensor]) -> dict[str, npt.NDArray[Any]]:
    return {tensor.name: tensor.data for tensor in tensors}


@dataclass(frozen=True, slots=True)
class TensorReference:
    """Where a tensor is kept."""

    identity: str
    """128 random bits: whoever has it was given it."""
    address: str
    """`host:port` of the pod."""
    size_bytes: int = 0
    """Of its raw form; 0: not known."""

    def as_parameters(self) -> dict[str, Any]:
        return {KEPT_TENSOR: self.identity, KEPT_AT: self.address, KEPT_BYTES: self.size_bytes}


def parse_reference(parameters: Mapping[str, Any], path: str) -> TensorReference | None:
    """The reference in an entry's parameters; None without one. Raises InvalidRequest."""
    identity, address = parameters.get(KEPT_TENSOR), parameters.get(KEPT_AT)
    if identity is None:
        return None
    if not isinstance(identity, str) or not _IDENTITY.fullmatch(identity):
        raise InvalidRequest(
            f"{path}: {KEPT_TENSOR} must be 32 hexadecimal digits, was {shown(identity)}"
        )
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise InvalidRequest(f"{path}: {KEPT_AT} must be host:port, was {shown(address)}")
    size = parameters.get(KEPT_BYTES, 0)
    if type(size) is not int or size < 0:
        raise InvalidRequest(f"{path}: {KEPT_BYTES} must be a number of bytes, was {shown(size)}")
    return TensorReference(identity, address, size)
