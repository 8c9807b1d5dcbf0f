"""Weights whose floating-point numbers are converted on their way to the device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from runtime.weights.safetensors_files import DTYPES, SCALE_NAMES, StoredTensor
from runtime.weights.slab import lay_out
from runtime.weights.weight_source import slab_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.weights.weight_source import SlabPart, WeightSource

_CAST: Final = frozenset({"F64", "F32", "F16", "BF16"})
"""Numbers of 8 bits have scales of their own, which a conversion would lose."""
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


class CastWeights:
    """The tensors of `source`, in the order of its slab, with another type."""

    image_name = ""

    def __init__(self, source: WeightSource, dtype: torch.dtype) -> None:
        self._source = source
        self._stored = source.layout.tensors
        self.layout = lay_out([_cast(tensor, _NAMES[dtype]) for tensor in self._stored])

    def parts(self, max_bytes: int) -> Iterator[SlabPart]:
        """All parts, once the source is complete: its parts are of other sizes."""
        for _ in self._source.parts(max_bytes):
            pass
        yield from slab_parts(self.layout.size_bytes, max_bytes)

    def wait_verified(self) -> None:
        self._source.wait_verified()

    def map_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, those of another type copied."""
        found = self._source.map_tensors()
        return {each.name: found[each.name].to(DTYPES[each.dtype]) for each in self.layout.tensors}

    def read_into(self, offset: int, target: memoryview) -> None:
        """Both ends must be multiples of the size of a number, as those of parts are."""
        end = offset + len(target)
        for stored, placed in zip(self._stored, self.layout.tensors, strict=True):
            first = max(offset, placed.offset)
            last = min(end, placed.offset + placed.size_bytes)
            if first < last:
                numbers = self._read(stored, placed, first - placed.offset, last - placed.offset)
                piece = target[first - offset : last - offset]
                torch.frombuffer(piece, dtype=torch.uint8).copy_(numbers.view(torch.uint8))

    def _read(
        self, stored: StoredTensor, placed: StoredTensor, first: int, last: int
    ) -> torch.Tensor:
        """The numbers of a tensor at these bytes of its new form."""
        old, new = DTYPES[stored.dtype], DTYPES[placed.dtype]
        size = (last - first) // new.itemsize * old.itemsize
        start = stored.offset + first // new.itemsize * old.itemsize
        buffer = bytearray(size)
        self._source.read_into(start, memoryview(buffer))
        return torch.frombuffer(buffer, dtype=old).to(new)

    def map_slab(self) -> torch.Tensor:
        raise NotImplementedError("converted weights are no image")

    def close(self) -> None:
        self._source.close()


def _cast(tensor: StoredTensor, dtype: str) -> StoredTensor:
    if tensor.dtype not in _CAST or tensor.name.rpartition(".")[2] in SCALE_NAMES:
        return tensor
    count = tensor.size_bytes // DTYPES[tensor.dtype].itemsize
    return replace(tensor, dtype=dtype, size_bytes=count * DTYPES[dtype].itemsize)
