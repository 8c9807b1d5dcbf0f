"""The slab: all tensors of a model in one contiguous range of bytes, each one aligned.

A file of tier `host` and an allocation on a device have the same layout, so a copy of the bytes in
order turns one into the other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.weights.safetensors_files import DTYPES, StoredTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

ALIGNMENT_BYTES = 64
"""A cache line; GPU kernels need 16."""


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """The offset of each tensor in a slab."""

    tensors: tuple[StoredTensor, ...]
    size_bytes: int

    @property
    def digest(self) -> str:
        """Equal for slabs whose tensors have the same names, types, shapes and offsets."""
        rows = [(each.name, each.dtype, each.shape, each.offset) for each in self.tensors]
        return hashlib.sha256(repr(rows).encode()).hexdigest()


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
