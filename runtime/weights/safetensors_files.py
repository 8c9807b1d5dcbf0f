"""Safetensors files: their headers, checked against the file before anything is mapped or read.

A mapped file that is shorter than its header says kills the process with SIGBUS when the missing
pages are touched, so every path to the bytes comes through here.
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.errors import ModelInvalid

HEADER_LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100 * 1024**2
BAD_HEADER_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What odd JSON makes of its reading."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
"""What safetensors calls each type."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's bytes in a file or a slab."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """First byte, counted from the beginning of the file or of the slab."""
    size_bytes: int

    def is_sound(self) -> bool:
        """Whether shape, type and bytes agree."""
        return (
            self.dtype in DTYPES
            and all(length >= 0 for length in self.shape)
            and self.offset >= 0
            and self.size_bytes == math.prod(self.shape) * DTYPES[self.dtype].itemsize
        )


def read_tensors(descriptor: int, file: str) -> tuple[StoredTensor, ...]:
    """The tensors of an open file in the order of their bytes; `file` is its name in errors.

    Gaps between tensors are allowed, as some writers align them; tensors may not overlap. Raises
    ModelInvalid where the file has not the size that its header promises. Of an exported program
    they are what its archive holds.
    """
    if file.endswith(".pt2"):
        from runtime.weights.archive_tensors import tensors_of_program  # which needs this module

        return tensors_of_program(Path(f"/proc/self/fd/{descriptor}"), file)
    try:
        size = os.fstat(descriptor).st_size
        prefix = os.pread(descriptor, HEADER_LENGTH_BYTES, 0)
        if len(prefix) < HEADER_LENGTH_BYTES:
            raise ModelInvalid(f"{file} is truncated: it has only {size} bytes")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(MOST_HEADER_BYTES, size - HEADER_LENGTH_BYTES):
            raise ModelInvalid(
                f"{file} is corrupt or truncated: its header says {length} bytes,"
                f" the file has {size}"
            )
        header = json.loads(os.pread(descriptor, length, HEADER_LENGTH_BYTES))
        begin = HEADER_LENGTH_BYTES + length
        tensors = [
            _tensor(file, name, entry, begin)
            for name, entry in header.items()
            if name != "__metadata__"
        ]
    except BAD_HEADER_ERRORS as error:
        raise ModelInvalid(f"{file} is corrupt: its header cannot be read") from error
    except OSError as error:
        raise ModelInvalid(f"{file} cannot be read: {error}") from error
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.size_bytes, tensor.name))
    _check_extent(file, tensors, begin=begin, size=size)
    return tuple(tensors)


def _tensor(file: str, name: str, entry: Any, begin: int) -> StoredTensor:
    first, last = entry["data_offsets"]
    shape = tuple(int(length) for length in entry["shape"])
    tensor = StoredTensor(name, str(entry["dtype"]), shape, begin + int(first), last - first)
    if not tensor.is_sound() or first < 0:
        raise ModelInvalid(
            f"{file} is not a valid safetensors file: tensor {name!r} of type {tensor.dtype}"
            f" and shape {list(shape)} lies at bytes {first} to {last};"
            f" the types are {', '.join(DTYPES)}"
        )
    return tensor


def _check_extent(file: str, tensors: list[StoredTensor], *, begin: int, size: int) -> None:
    end = begin
    for tensor in tensors:
        if tensor.offset < end and tensor.size_bytes:
            raise ModelInvalid(
                f"{file} is not a valid safetensors file: tensor {tensor.name!r}"
                " overlaps the one before it"
            )
        end = max(end, tensor.offset + tensor.size_bytes)
    if end != size:
        raise ModelInvalid(
            f"{file} is corrupt or truncated: its header promises {end} bytes, the file has {size}"
        )
