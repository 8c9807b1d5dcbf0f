"""The layout of a slab: all tensors of a model in one run of bytes, each one aligned.

The same layout is a file of tier `host` and an allocation on a device, so that one becomes the
other by copying bytes in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.weights.safetensors_files import DTYPES, StoredTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

ALIGNMENT_BYTES = 64
"""A cache line; kernels of GPUs ask for 16."""


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """Where each tensor lies in the slab."""

    tensors: tuple[StoredTensor, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """A model's tensors on the device, views of one slab."""

    tensors: dict[str, torch.Tensor]
    size_bytes: int

    def release(self) -> None:
        """Drop the tensors; the memory is free once the network has dropped them, too."""
        self.tensors.clear()


def lay_out(tensors: Sequence[StoredTensor]) -> SlabLayout:
    """A slab of the tensors in their order."""
    placed = []
    end = 0
    for tensor in tensors:
        placed.append(StoredTensor(tensor.name, tensor.dtype, tensor.shape, end, tensor.size_bytes))
        end = aligned(end + tensor.size_bytes)
    return SlabLayout(tuple(placed), end)


def aligned(size_bytes: int, alignment_bytes: int = ALIGNMENT_BYTES) -> int:
    """The next multiple of the alignment."""
    return -(-size_bytes // alignment_bytes) * alignment_bytes


def view_of(region: torch.Tensor, tensor: StoredTensor) -> torch.Tensor:
    """A tensor as a view of the bytes it lies in; where they are unaligned for it, a copy.

    Args:
        region: uint8, one dimension; the tensor's offset counts from its beginning.
        tensor: what lies there.
    """
    dtype = DTYPES[tensor.dtype]
    part = region.narrow(0, tensor.offset, tensor.size_bytes)
    if part.data_ptr() % dtype.itemsize or part.storage_offset() % dtype.itemsize:
        part = part.clone()
    return part.view(dtype).view(tensor.shape)
