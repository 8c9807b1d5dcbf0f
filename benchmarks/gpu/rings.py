"""Loads through staging rings of other sizes: how many buffers, how large, filled by how many.

More readers fill faster and smaller buffers keep the bus from being taken for long at a time: one
run shows what both cost and bring, so that the runtime's own ring can be chosen by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.gpu.copies import load_rate
from benchmarks.gpu.serving import Serving, measure_serving
from benchmarks.quantiles import spread
from runtime.device.staged_memory import BUFFER_BYTES, BUFFERS, MAX_COPIES, READERS, StagedMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.gpu.subject import Subject
    from runtime.weights.weight_source import WeightSource

_MIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Ring:
    """Buffers of pinned memory, and the threads that fill them."""

    buffers: int = BUFFERS
    buffer_bytes: int = BUFFER_BYTES
    readers: int = READERS
    max_copies: int = MAX_COPIES
    """Under way at once."""


RINGS: Final = (
    Ring(),
    Ring(readers=8),
    Ring(readers=8, max_copies=8),
    Ring(buffers=16, readers=12),
    Ring(buffers=16, buffer_bytes=8 * _MIB, readers=8),
    Ring(buffers=32, buffer_bytes=8 * _MIB, readers=12),
    Ring(buffers=64, buffer_bytes=2 * _MIB, readers=12),
)
"""The runtime's own is the first."""


@dataclass(frozen=True, slots=True)
class RingLoads:
    """What one ring did."""

    ring: Ring
    rates: list[float]
    """Bytes per second of each load."""
    serving: Serving


def measure_rings(
    subject: Subject,
    network: Any,
    opened: Callable[[], WeightSource],
    *,
    rings: Sequence[Ring],
    repeats: int,
    inferences: int,
) -> list[RingLoads]:
    """Each ring by itself, after one load that is not counted."""
    results = []
    for ring in rings:
        memory = StagedMemory(
            subject.engine,
            buffers=ring.buffers,
            buffer_bytes=ring.buffer_bytes,
            readers=ring.readers,
            max_copies=ring.max_copies,
        )
        try:
            rates = [load_rate(memory, opened) for _ in range(repeats + 1)][1:]
            serving = measure_serving(network, memory, opened, repeats=1, inferences=inferences)
        finally:
            memory.close()
        results.append(RingLoads(ring, rates, serving))
    return results


def ring_table(results: Sequence[RingLoads]) -> str:
    """A Markdown table."""
    rows = [
        "| buffers | MiB each | readers | copies at once | load, GB/s | p50 beside loads |",
        "|---|---|---|---|---|---|",
    ]
    for each in results:
        alone, beside = (spread(times) for times in (each.serving.alone_s, each.serving.beside_s))
        rows.append(
            f"| {each.ring.buffers} | {each.ring.buffer_bytes / _MIB:g} | {each.ring.readers}"
            f" | {each.ring.max_copies}"
            f" | {spread(each.rates).median / 1e9:.2f}"
            f" | {beside.median / alone.median:.2f} times that alone |"
        )
    return "\n".join(rows)
