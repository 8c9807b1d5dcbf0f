"""From tier `host` to the device against what one plain copy of pinned memory reaches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.subject import Subject
    from runtime.device.staged_memory import StagedMemory
    from runtime.weights.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Copies:
    """Bytes per second, one figure for each repeat."""

    size_bytes: int
    pinned: list[float]
    """One buffer of pinned memory that the device reads by itself: the limit."""
    load: list[float]
    """The runtime: a slab allocated and filled from the model's image."""


def measure_copies(
    subject: Subject,
    memory: StagedMemory,
    opened: Callable[[], WeightSource],
    *,
    repeats: int,
    pinned_bytes: int,
) -> Copies:
    """Both in turn, after one of each that is not counted; the image is registered, as in a pod."""
    engine = subject.engine
    register(memory, opened)
    buffer, slab = engine.allocate_pinned(pinned_bytes), engine.allocate(pinned_bytes)
    pinned, load = [], []
    for _ in range(repeats + 1):
        begun_s = time.perf_counter()
        engine.copy(slab, buffer).synchronize()
        pinned.append(pinned_bytes / (time.perf_counter() - begun_s))
        load.append(load_rate(memory, opened))
    return Copies(_size_of(opened), pinned[1:], load[1:])


def register(memory: StagedMemory, opened: Callable[[], WeightSource]) -> None:
    """Have the model's loads copy from where its image lies, if it has one."""
    source = opened()
    if source.image_name and (registering := memory.register(source)) is not None:
        registering.result()
    source.close()


def load_rate(memory: StagedMemory, opened: Callable[[], WeightSource]) -> float:
    """Bytes per second of one load; what it brought is given back."""
    source = opened()
    try:
        begun_s = time.perf_counter()
        memory.put(source).release()
        return source.layout.size_bytes / (time.perf_counter() - begun_s)
    finally:
        source.close()


def _size_of(opened: Callable[[], WeightSource]) -> int:
    source = opened()
    source.close()
    return source.layout.size_bytes
