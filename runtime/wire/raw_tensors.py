"""Tensors as raw bytes: V2's binary extension over HTTP and raw contents over gRPC.

Numbers are little-endian in row-major order; a string has its length in four bytes before it.
Numbers are not copied when they are read, but for BF16, which is widened to float32.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.errors import InvalidRequest
from runtime.wire.tensors import BF16, BYTES, NUMPY_OF, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.wire.tensors import Description

BF16_BYTES = 2
HALF_OF_LAST_BIT = 0x7FFF
"""What rounds the lower half of a float32 to the nearest BF16, ties to even."""


def from_raw(buffer: memoryview, about: Description) -> Tensor:
    """A tensor from its bytes; raises InvalidRequest where they are too few or too many."""
    if about.datatype == BYTES:
        return Tensor(about.name, BYTES, string_array(_strings(buffer, about.place), about))
    width = BF16_BYTES if about.datatype == BF16 else NUMPY_OF[about.datatype].itemsize
    if len(buffer) != about.count * width:
        raise InvalidRequest(
            f"{about.place}: shape {list(about.shape)} of {about.datatype} needs"
            f" {about.count * width} bytes, got {len(buffer)}"
        )
    return Tensor(about.name, about.datatype, _numbers(buffer, about).reshape(about.shape))


def _numbers(buffer: memoryview, about: Description) -> npt.NDArray[Any]:
    if about.datatype == BF16:
        return (np.frombuffer(buffer, "<u2").astype(np.uint32) << 16).view(np.float32)
    values = np.frombuffer(buffer, NUMPY_OF[about.datatype])
    if about.datatype == "BOOL" and values.view(np.uint8).max(initial=0) > 1:
        raise InvalidRequest(f"{about.place}: data of datatype BOOL must be bytes of 0 or 1")
    return values


def string_array(values: Sequence[bytes], about: Description) -> npt.NDArray[Any]:
    """Strings in the shape that was described; raises InvalidRequest."""
    if len(values) != about.count:
        raise InvalidRequest(
            f"{about.place}: shape {list(about.shape)} needs {about.count} strings,"
            f" got {len(values)}"
        )
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(about.shape)


def _strings(buffer: memoryview, place: str) -> list[bytes]:
    values, position = [], 0
    while position < len(buffer):
        if position + 4 > len(buffer):
            raise InvalidRequest(f"{place}: BYTES data ends inside a length")
        (length,) = struct.unpack_from("<I", buffer, position)
        position += 4
        if position + length > len(buffer):
            raise InvalidRequest(f"{place}: BYTES data ends inside a string of {length} bytes")
        values.append(bytes(buffer[position : position + length]))
        position += length
    return values


def to_raw(tensor: Tensor) -> bytes:
    """A tensor's bytes."""
    if tensor.datatype == BYTES:
        return b"".join(struct.pack("<I", len(value)) + value for value in tensor.data.ravel())
    if tensor.datatype == BF16:
        return _halved(np.ascontiguousarray(tensor.data, np.float32)).tobytes()
    return np.ascontiguousarray(tensor.data).tobytes()


def _halved(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The upper halves of float32 values, rounded; what is not a number stays none."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + HALF_OF_LAST_BIT + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype("<u2")
