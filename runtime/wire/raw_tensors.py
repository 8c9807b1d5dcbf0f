"""Tensors as raw bytes: V2's binary extension over HTTP and raw contents over gRPC.

Numbers are little-endian in row-major order; each string follows its length in four bytes.
Decoding does not copy numbers, except BF16, which is widened to float32.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.errors import InvalidRequest
from runtime.wire.tensors import BF16, BYTES, NUMPY_OF, Tensor, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence


BF16_BYTES = 2
HALF_OF_LAST_BIT = 0x7FFF
"""Added to a float32's bits, it rounds the upper half to the nearest BF16, ties to even."""


def from_raw(buffer: memoryview, spec: TensorSpec) -> Tensor:
    """A tensor from its bytes; raises InvalidRequest if the buffer is too short or too long."""
    if spec.datatype == BYTES:
        return Tensor(spec.name, BYTES, string_array(_strings(buffer, spec.path), spec))
    if len(buffer) != raw_size(spec):
        raise InvalidRequest(
            f"{spec.path}: shape {list(spec.shape)} of {spec.datatype} needs"
            f" {raw_size(spec)} bytes, got {len(buffer)}"
        )
    return Tensor(spec.name, spec.datatype, _numbers(buffer, spec).reshape(spec.shape))


def _numbers(buffer: memoryview, spec: TensorSpec) -> npt.NDArray[Any]:
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
