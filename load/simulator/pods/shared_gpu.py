"""A simulated GPU on which several pods compute at once.

Each batch has the time that it takes alone; while others run beside it, it advances slower by the
factor of the interference. Factors are computed anew when a batch starts or ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from load.simulator.event_queue import EventQueue
    from load.simulator.pods.interference import GpuBatch, Interference


class SharedGpu:
    """The batches that run on one GPU."""

    __slots__ = ("_change", "_events", "_interference", "_running")

    def __init__(self, events: EventQueue, interference: Interference) -> None:
        self._events = events
        self._interference = interference
        self._running: list[GpuBatch] = []
        self._change = 0
        """Number of changes of `_running`: an end planned before the last one is void."""

    def run(self, batch: GpuBatch) -> None:
        batch.begun_s = batch.updated_s = self._events.now_s
        self._advance()
        self._running.append(batch)
        self._plan_next_end()

    def _advance(self) -> None:
        now_s = self._events.now_s
        for each in self._running:
            each.left_s = max(0.0, each.left_s - (now_s - each.updated_s) / each.slowdown)
            each.updated_s = now_s

    def _plan_next_end(self) -> None:
        """Compute the slowdowns, and plan the end of the batch that ends first."""
        self._change += 1
        if not self._running:
            return
        slowdowns = self._interference(self._running)
        for each, slowdown in zip(self._running, slowdowns, strict=True):
            each.slowdown = slowdown
        first = min(self._running, key=lambda each: each.left_s * each.slowdown)
        after_s = first.left_s * first.slowdown
        self._events.after(after_s, self._end, (first, self._change))

    def _end(self, planned: tuple[GpuBatch, int]) -> None:
        batch, change = planned
        if change != self._change:
            return
        self._advance()
        self._running.remove(batch)
        self._plan_next_end()
        batch.ended(self._events.now_s - batch.begun_s)
