"""Stored tensors: in safetensors files, checked before anything is mapped or read, and in the slab.

If a mapped file is shorter than its header declares, access to the missing pages kills the process
with SIGBUS, so all code that reads the bytes goes through this module.

The slab: all tensors of a model in one contiguous range of bytes, each one aligned. A file of tier
`host` and an allocation on a device have the same layout, so a copy of the bytes in order turns one
into the other.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from common.inference_protocol.tensors import NUMBER_TYPES
from runtime.errors import ModelInvalid

HEADER_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100 * 1024**2
BAD_HEADER_ERRORS = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""Errors raised when a header is invalid JSON or has an unexpected structure."""

DTYPES: Final[Mapping[str, torch.dtype]] = {
    each.safetensors: getattr(torch, each.torch) for each in NUMBER_TYPES
}
"""Torch types by their names in safetensors."""
DATATYPE_OF: Final[Mapping[torch.dtype, str]] = {
    getattr(torch, each.torch): each.datatype for each in NUMBER_TYPES if each.datatype
}
"""The protocol's datatypes of torch types; some have none."""
ALIGNMENT_BYTES = 64
"""A cache line; GPU kernels need 16."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's bytes in a file or a slab."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """First byte, counted from the beginning of the file or of the slab."""
    size_bytes: int


def read_header_end(descriptor: int, file: str) -> int:
    """Offset of the first byte after the header; raises ModelInvalid, OSError."""
    size = os.fstat(descriptor).st_size
    prefix = os.pread(descriptor, HEADER_LENGTH_BYTES, 0)
    if len(prefix) < HEADER_LENGTH_BYTES:
        raise ModelInvalid(f"{file} is truncated: it has only {size} bytes")
    length = int.from_bytes(prefix, "little")
    if length > min(MAX_HEADER_BYTES, size - HEADER_LENGTH_BYTES):
        raise ModelInvalid(
            f"{file} is corrupt or truncated: its header has {length} bytes, the file {size}"
        )
    return HEADER_LENGTH_BYTES + length


def read_tensors(descriptor: int, file: str) -> tuple[StoredTensor, ...]:
    """The tensors of an open file in the order of their bytes; `file` is its name in errors.

    Gaps between tensors are allowed, since some writers align them; tensors may not overlap. Raises
    ModelInvalid if the file does not have the size that its header declares.
    """
    try:
        begin = read_header_end(descriptor, file)
        header = json.loads(os.pread(descriptor, begin - HEADER_LENGTH_BYTES, HEADER_LENGTH_BYTES))
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
    _check_extent(file, tensors, begin=begin, size=os.fstat(descriptor).st_size)
    return tuple(tensors)


def _tensor(file: str, name: str, entry: Any, begin: int) -> StoredTensor:
    first, last = entry["data_offsets"]
    dtype, shape = str(entry["dtype"]), tuple(int(length) for length in entry["shape"])
    if not (
        dtype in DTYPES
        and all(length >= 0 for length in shape)
        and first >= 0
        and last - first == math.prod(shape) * DTYPES[dtype].itemsize
    ):
        raise ModelInvalid(
            f"{file} is not a valid safetensors file: tensor {name!r} of type {dtype}"
            f" and shape {list(shape)} lies at bytes {first} to {last};"
            f" the types are {', '.join(DTYPES)}"
        )
    return StoredTensor(name, dtype, shape, begin + int(first), last - first)


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


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """The offset of each tensor in a slab."""

    tensors: tuple[StoredTensor, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """A model's tensors on the device, views of one slab."""

    tensors: dict[str, torch.Tensor]
    size_bytes: int
    on_release: Callable[[], None] = lambda: None

    def release(self) -> None:
        """Drop the tensors; the memory is free once the network has dropped them, too."""
        self.tensors.clear()
        self.on_release()


def lay_out(tensors: Sequence[StoredTensor]) -> SlabLayout:
    placed = []
    end = 0
    for tensor in tensors:
        placed.append(StoredTensor(tensor.name, tensor.dtype, tensor.shape, end, tensor.size_bytes))
        end = aligned(end + tensor.size_bytes)
    return SlabLayout(tuple(placed), end)


def aligned(size_bytes: int, alignment_bytes: int = ALIGNMENT_BYTES) -> int:
    return -(-size_bytes // alignment_bytes) * alignment_bytes


def view_of(region: torch.Tensor, tensor: StoredTensor) -> torch.Tensor:
    """A tensor as a view of a region of uint8, or as a copy if its bytes are unaligned there."""
    dtype = DTYPES[tensor.dtype]
    part = region.narrow(0, tensor.offset, tensor.size_bytes)
    if part.data_ptr() % dtype.itemsize or part.storage_offset() % dtype.itemsize:
        part = part.clone()
    return part.view(dtype).view(tensor.shape)
