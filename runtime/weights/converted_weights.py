"""Weights as a network takes them: stored tensors that are left out, joined, split or cast.

What becomes of each tensor is decided by whoever knows the network, in conversions; they are
carried out here, as tensors are mapped or read.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from runtime.weights.safetensors_files import DTYPES, StoredTensor, lay_out
from runtime.weights.weight_source import WeightSource

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Conversion:
    """How tensors are made of stored ones; the offsets of the results mean nothing."""

    sources: tuple[str, ...]
    results: tuple[StoredTensor, ...]
    convert: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None = None
    """None: the only source, in the type of the only result."""


def converted(source: WeightSource, conversions: Sequence[Conversion] | None) -> WeightSource:
    """`source` with the results of the conversions alone; None: as it is."""
    return source if conversions is None else ConvertedWeights(source, conversions)


@dataclass(frozen=True, slots=True)
class _Place:
    """A result in the slab."""

    tensor: StoredTensor
    conversion: Conversion
    made: _Made | None
    number: int
    """Among the results of its conversion."""


class ConvertedWeights(WeightSource):
    """The results of conversions, in the order of their sources."""

    def __init__(self, source: WeightSource, conversions: Sequence[Conversion]) -> None:
        self._source = source
        self._stored = {tensor.name: tensor for tensor in source.layout.tensors}
        self._conversions = sorted(
            conversions, key=lambda each: min(self._stored[name].offset for name in each.sources)
        )
        results = [result for each in self._conversions for result in each.results]
        self.layout = lay_out(results)
        placed = iter(self.layout.tensors)
        self._places: list[_Place] = []
        for conversion in self._conversions:
            made = None if conversion.convert is None else _Made(conversion)
            for number, _ in enumerate(conversion.results):
                self._places.append(_Place(next(placed), conversion, made, number))
        self._starts = [place.tensor.offset for place in self._places]

    def wait_complete(self) -> None:
        self._reset()
        self._source.wait_complete()

    def map_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors: mapped, but for those of another type and those made of several."""
        stored = self._source.map_tensors()
        found: dict[str, torch.Tensor] = {}
        for each in self._conversions:
            sources = [stored.pop(name) for name in each.sources]
            if each.convert is None:
                (result,) = each.results
                found[result.name] = sources[0].to(DTYPES[result.dtype])
            else:
                made = [tensor.contiguous() for tensor in each.convert(sources)]
                found |= {one.name: tensor for one, tensor in zip(each.results, made, strict=True)}
        return found

    def read_into(self, offset: int, target: memoryview) -> None:
        """Both ends must be multiples of the size of a number, as those of parts are."""
        end = offset + len(target)
        for place in self._places_in(offset, end):
            first = max(offset, place.tensor.offset)
            last = min(end, place.tensor.offset + place.tensor.size_bytes)
            if first >= last:
                continue
            piece = target[first - offset : last - offset]
            begin = first - place.tensor.offset
            if place.made is not None:
                place.made.read_into(self._source, self._stored, place.number, begin, piece)
            else:
                self._read_cast(place, begin, piece)

    def _read_cast(self, place: _Place, begin: int, target: memoryview) -> None:
        stored = self._stored[place.conversion.sources[0]]
        old, new = DTYPES[stored.dtype], DTYPES[place.tensor.dtype]
        start = stored.offset + begin // new.itemsize * old.itemsize
        if old == new:
            self._source.read_into(start, target)
            return
        buffer = bytearray(len(target) // new.itemsize * old.itemsize)
        self._source.read_into(start, memoryview(buffer))
        numbers = torch.frombuffer(buffer, dtype=old).to(new)
        torch.frombuffer(target, dtype=torch.uint8).copy_(numbers.view(torch.uint8))

    def _places_in(self, first: int, end: int) -> Iterator[_Place]:
        for place in self._places[max(0, bisect_right(self._starts, first) - 1) :]:
            if place.tensor.offset >= end:
                return
            if place.tensor.offset + place.tensor.size_bytes > first:
                yield place

    def _reset(self) -> None:
        for place in self._places:
            if place.made is not None:
                place.made.reset()

    def close(self) -> None:
        self._reset()
        self._source.close()


class _Made:
    """The results of one conversion, from the first read of them to the last. Thread-safe."""

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._lock = threading.Lock()
        self._tensors: list[torch.Tensor] = []
        """Bytes of the results; empty: not made, or all read."""
        self._unread_bytes = 0

    def read_into(
        self,
        source: WeightSource,
        stored: dict[str, StoredTensor],
        number: int,
        begin: int,
        target: memoryview,
    ) -> None:
        with self._lock:
            if not self._tensors:
                self._tensors = self._make(source, stored)
                self._unread_bytes = sum(each.nbytes for each in self._tensors)
            made = self._tensors[number]
            self._unread_bytes -= len(target)
            if self._unread_bytes <= 0:
                self._tensors = []
        torch.frombuffer(target, dtype=torch.uint8).copy_(made[begin : begin + len(target)])

    def _make(self, source: WeightSource, stored: dict[str, StoredTensor]) -> list[torch.Tensor]:
        convert = self._conversion.convert
        if convert is None:
            raise RuntimeError("a cast is read without this")
        tensors = [_read(source, stored[name]) for name in self._conversion.sources]
        return [each.contiguous().view(-1).view(torch.uint8) for each in convert(tensors)]

    def reset(self) -> None:
        with self._lock:
            self._tensors = []


def _read(source: WeightSource, tensor: StoredTensor) -> torch.Tensor:
    if not tensor.size_bytes:
        return torch.empty(tensor.shape, dtype=DTYPES[tensor.dtype])
    buffer = bytearray(tensor.size_bytes)
    source.read_into(tensor.offset, memoryview(buffer))
    return torch.frombuffer(buffer, dtype=DTYPES[tensor.dtype]).view(tensor.shape)
