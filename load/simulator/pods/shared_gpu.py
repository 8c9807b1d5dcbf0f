"""A simulated GPU on which several pods compute at once, and how much slower batches are then.

Each batch has the time that it takes alone; while others run beside it, it advances slower by a
factor, which is computed anew when a batch starts or ends: `none`; `overlap`: while the
multiprocessors used exceed 100 %, all are slower in proportion; `table`: the measured factor of
each neighbour. None of these is a planner's own. Others are plug-ins: functions of measurements
and of models' names, such as `igniter` in `research/placement/igniter_file.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from load.simulator.event_queue import EventQueue


class GpuBatch:
    """A running batch. Mutable."""

    __slots__ = ("begun_s", "ended", "left_s", "model", "rows", "slowdown", "updated_s", "used_pct")

    def __init__(
        self, model: str, rows: int, used_pct: float, alone_s: float, ended: Callable[[float], Any]
    ) -> None:
        """`used_pct`: of the multiprocessors; `ended` gets the time that the batch took."""
        self.model = model
        self.rows = rows
        self.used_pct = used_pct
        self.ended = ended
        self.left_s = alone_s
        """Time left if it ran alone."""
        self.slowdown = 1.0
        self.begun_s = 0.0
        self.updated_s = 0.0


Interference = Callable[["Sequence[GpuBatch]"], list[float]]
"""The slowdown of each running batch, at least 1."""

_WHOLE_PCT = 100.0


def none(running: Sequence[GpuBatch]) -> list[float]:
    return [1.0] * len(running)


def overlap(running: Sequence[GpuBatch]) -> list[float]:
    """Multiprocessors are divided in proportion to need."""
    used = sum([each.used_pct for each in running])
    return [max(1.0, used / _WHOLE_PCT)] * len(running)


def table(pairs: Mapping[tuple[str, str], float]) -> Interference:
    """`pairs`: the slowdown by (model, neighbour); those of several neighbours add up."""

    def slowdowns(running: Sequence[GpuBatch]) -> list[float]:
        return [
            1.0
            + sum(
                pairs.get((each.model, other.model), 1.0) - 1.0
                for other in running
                if other is not each
            )
            for each in running
        ]

    return slowdowns


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
