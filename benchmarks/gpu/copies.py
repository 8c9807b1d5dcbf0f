"""From tier `host` to the device against what one plain copy of pinned memory reaches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.subject import Subject
    from runtime.device.staged_memory import StagedMemory
    from runtime.networks.weight_source import WeightSource


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
    """Both in turn, after one of each that is not counted."""
    engine = subject.engine
    buffer, slab = engine.pinned(pinned_bytes), engine.allocate(pinned_bytes)
    pinned, load, size_bytes = [], [], 0
    for _ in range(repeats + 1):
        begun_s = time.perf_counter()
        engine.copy(slab, buffer).wait()
        pinned.append(pinned_bytes / (time.perf_counter() - begun_s))
        source = opened()
        size_bytes = source.layout.size_bytes
        begun_s = time.perf_counter()
        weights = memory.put(source)
        load.append(size_bytes / (time.perf_counter() - begun_s))
        weights.release()
        source.close()
    return Copies(size_bytes, pinned[1:], load[1:])
