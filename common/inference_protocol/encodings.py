"""Tensors as raw bytes, and as JSON lists, in the forms of V2.

Raw bytes are those of V2's binary extension over HTTP and of raw contents over gRPC: numbers are
little-endian in row-major order, each string follows its length in four bytes. Decoding them does
not copy numbers, except BF16, which is widened to float32.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import (
    BF16,
    BYTES,
    NUMPY_OF,
    RAW_ONLY,
    Tensor,
    TensorSpec,
    does_not_fit,
)
from common.shown_value import kind_of, shown

BF16_BYTES = 2
HALF_OF_LAST_BIT = 0x7FFF
"""Added to a float32's bits, it rounds the upper half to the nearest BF16, ties to even."""
TYPES_OF: Mapping[str, set[type]] = {"b": {bool}, "f": {int, float, type(None)}}
"""Types of JSON values allowed for numpy's kinds; all other kinds take whole numbers.

`null` is NaN, which JSON cannot write: clients send it so, and responses hold it so.
"""


def from_raw(buffer: memoryview, spec: TensorSpec) -> Tensor:
    """A tensor from its bytes; raises InvalidRequest if the buffer is too short or too long."""
    if spec.datatype == BYTES:
        return Tensor(spec.name, BYTES, string_array(_strings(buffer, spec.path), spec))
    if len(buffer) != raw_size(spec):
        raise InvalidRequest(
            f"{spec.path}: shape {list(spec.shape)} of {spec.datatype} needs"
            f" {raw_size(spec)} bytes, got {len(buffer)}"
        )
    return Tensor(spec.name, spec.datatype, _raw_numbers(buffer, spec).reshape(spec.shape))


def _raw_numbers(buffer: memoryview, spec: TensorSpec) -> npt.NDArray[Any]:
    if spec.datatype == BF16:
        return (np.frombuffer(buffer, "<u2").astype(np.uint32) << 16).view(np.float32)
    values = np.frombuffer(buffer, NUMPY_OF[spec.datatype])
    if spec.datatype == "BOOL" and values.view(np.uint8).max(initial=0) > 1:
        raise InvalidRequest(f"{spec.path}: data of datatype BOOL must be bytes of 0 or 1")
    return values


def string_array(values: Sequence[bytes], spec: TensorSpec) -> npt.NDArray[Any]:
    """Strings in the shape of `spec`; raises InvalidRequest if their number differs."""
    if len(values) != spec.count:
        raise InvalidRequest(
            f"{spec.path}: shape {list(spec.shape)} needs {spec.count} strings, got {len(values)}"
        )
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(spec.shape)


def _strings(buffer: memoryview, path: str) -> list[bytes]:
    values, position = [], 0
    while position < len(buffer):
        if position + 4 > len(buffer):
            raise InvalidRequest(f"{path}: BYTES data ends inside a length")
        (length,) = struct.unpack_from("<I", buffer, position)
        position += 4
        if position + length > len(buffer):
            raise InvalidRequest(f"{path}: BYTES data ends inside a string of {length} bytes")
        values.append(bytes(buffer[position : position + length]))
        position += length
    return values


def raw_size(spec: TensorSpec) -> int:
    """Bytes of the raw form of a tensor of numbers."""
    width = BF16_BYTES if spec.datatype == BF16 else NUMPY_OF[spec.datatype].itemsize
    return spec.count * width


def raw_view(tensor: Tensor) -> memoryview:
    """The raw form of a tensor of numbers, copied only if it has another form or order."""
    if tensor.datatype == BF16:
        return memoryview(to_raw(tensor))
    return np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8).data


def raw_bytes(tensor: Tensor) -> int:
    """Size of the raw form of a tensor of numbers."""
    return math.prod(tensor.shape) * BF16_BYTES if tensor.datatype == BF16 else tensor.host_bytes


def to_raw(tensor: Tensor) -> bytes:
    if tensor.datatype == BYTES:
        return b"".join(struct.pack("<I", len(value)) + value for value in tensor.data.ravel())
    if tensor.datatype == BF16:
        return _to_bf16(np.ascontiguousarray(tensor.data, np.float32)).tobytes()
    return np.ascontiguousarray(tensor.data).tobytes()


def _to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The upper halves of float32 values, rounded; NaN stays NaN."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + HALF_OF_LAST_BIT + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype("<u2")


def from_json(data: Any, spec: TensorSpec) -> Tensor:
    """A tensor from its list, flat or nested; raises InvalidRequest."""
    if not isinstance(data, list):
        raise InvalidRequest(f"{spec.path}: 'data' must be an array, was {kind_of(data)}")
    flat = _flatten(data, spec)
    if len(flat) != spec.count:
        raise InvalidRequest(
            f"{spec.path}: shape {list(spec.shape)} needs {spec.count} elements,"
            f" data has {len(flat)}"
        )
    types = set(map(type, flat))  # one pass in C: data may have millions of elements
    if spec.datatype == BYTES:
        if not types <= {str}:
            raise InvalidRequest(f"{spec.path}: data of datatype BYTES must be strings")
        return Tensor(spec.name, BYTES, string_array([text.encode() for text in flat], spec))
    return Tensor(spec.name, spec.datatype, _json_numbers(flat, types, spec))


def _json_numbers(flat: list[Any], types: set[type], spec: TensorSpec) -> npt.NDArray[Any]:
    dtype = NUMPY_OF.get(spec.datatype, NUMPY_OF["FP32"])  # BF16
    if not types <= TYPES_OF.get(dtype.kind, {int}):
        raise InvalidRequest(f"{spec.path}: data must be values of datatype {spec.datatype}")
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype=dtype).reshape(spec.shape)
    except (ValueError, OverflowError, FloatingPointError) as error:
        raise does_not_fit([each for each in flat if each is not None], "data", spec) from error


def _flatten(data: list[Any], spec: TensorSpec) -> list[Any]:
    sizes = [len(data)]
    while data and isinstance(data[0], list):
        if not all(isinstance(row, list) for row in data):
            raise InvalidRequest(f"{spec.path}: data mixes arrays and values at one depth")
        if len(set(map(len, data))) > 1:
            raise InvalidRequest(f"{spec.path}: data has arrays of different lengths at one depth")
        sizes.append(len(data[0]))
        data = [value for row in data for value in row]
    depth = len(sizes) if sizes[-1] == 0 else max(len(sizes), len(spec.shape))
    if len(sizes) > 1 and tuple(sizes) != spec.shape[:depth]:
        raise InvalidRequest(
            f"{spec.path}: data is nested as {shown(sizes)}, shape is {list(spec.shape)}"
        )
    return data


def to_json(tensor: Tensor) -> list[Any] | None:
    """A tensor's elements; None if JSON cannot hold them, so they must be sent in binary."""
    if tensor.datatype in RAW_ONLY:
        return None
    if tensor.datatype != BYTES:
        return list(tensor.data.ravel().tolist())
    try:
        return [value.decode() for value in tensor.data.ravel()]
    except UnicodeDecodeError:
        return None
