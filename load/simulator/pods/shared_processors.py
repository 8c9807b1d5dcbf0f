"""Processors that simulated pods share: the cores of a machine, and a GPU.

On cores, work runs at its own speed while its demand and all others' fit; else each gets what is
fair, as by Linux' scheduler: nobody gets more than it needs, and what one leaves the others share
by their number of threads (max-min fairness).

On a GPU each batch has the time that it takes alone; while others run beside it, it advances slower
by a factor, which is computed anew when a batch starts or ends: `none`; `overlap`: while the
multiprocessors used exceed 100 %, all are slower in proportion. Neither is a planner's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from load.simulator.event_queue import EventQueue


class CoreWork:
    """A running piece of work. Mutable."""

    __slots__ = ("argument", "demand", "done", "left_s", "speed", "threads")

    def __init__(
        self, alone_s: float, demand: float, done: Callable[[Any], object], argument: Any
    ) -> None:
        self.left_s = alone_s
        """Time left if it ran alone."""
        self.demand = demand
        self.threads = max(1, ceil(demand))
        self.speed = 1.0
        self.done = done
        self.argument = argument


class SharedCores:
    """`cores` of a machine; a fraction is what constant other work leaves."""

    __slots__ = ("_all_cores_speed", "_cores", "_events", "_plan", "_updated_s", "_work")

    def __init__(self, events: EventQueue, cores: float, all_cores_speed: float = 1.0) -> None:
        """`all_cores_speed`: of a core while all are busy, against one that is busy alone."""
        self._events = events
        self._cores = cores
        self._all_cores_speed = all_cores_speed
        self._work: list[CoreWork] = []
        self._updated_s = 0.0
        self._plan = 0
        """Number of changes of `_work`: an end planned before the last one is void."""

    def run(
        self, alone_s: float, done: Callable[[Any], object], argument: Any, demand: float = 1.0
    ) -> None:
        """Call `done(argument)` when work has ended that takes `alone_s` on idle cores.

        `demand`: cores that it keeps busy meanwhile, on average.
        """
        if alone_s <= 0 or demand <= 0:
            self._events.after(max(0.0, alone_s), done, argument)
            return
        self._advance()
        self._work.append(CoreWork(alone_s, demand, done, argument))
        self._replan()

    def _advance(self) -> None:
        passed_s = self._events.now_s - self._updated_s
        self._updated_s = self._events.now_s
        if passed_s:
            for each in self._work:
                each.left_s -= passed_s * each.speed

    def _replan(self) -> None:
        """Compute the speeds, and plan the end of the work that ends first."""
        self._plan += 1
        work = self._work
        demand = sum([each.demand for each in work])
        if demand <= self._cores:
            for each in work:
                each.speed = 1.0
        else:
            _share(work, self._cores)
        if demand > 1.0 and self._all_cores_speed < 1.0:
            busy_part = min(1.0, (demand - 1.0) / (self._cores - 1.0)) if self._cores > 1 else 1.0
            slower = 1.0 - busy_part * (1.0 - self._all_cores_speed)
            for each in work:
                each.speed *= slower
        first = min(work, key=_left_s)
        self._events.after(max(0.0, _left_s(first)), self._end, (first, self._plan))

    def _end(self, planned: tuple[CoreWork, int]) -> None:
        first, plan = planned
        if plan != self._plan:
            return
        self._advance()
        self._work.remove(first)
        if self._work:
            self._replan()
        else:
            self._plan += 1
        first.done(first.argument)


def _left_s(work: CoreWork) -> float:
    return work.left_s / work.speed


def _share(work: list[CoreWork], cores: float) -> None:
    """Set speeds so that no work gets more than its demand, and equal threads get equal parts."""
    threads = sum([each.threads for each in work])
    for each in sorted(work, key=lambda each: each.demand / each.threads):
        got = min(each.demand, cores * each.threads / threads)
        each.speed = got / each.demand
        cores -= got
        threads -= each.threads


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


def no_slowdown(running: Sequence[GpuBatch]) -> list[float]:
    return [1.0] * len(running)


def overlap_slowdowns(running: Sequence[GpuBatch]) -> list[float]:
    """Multiprocessors are divided in proportion to need."""
    used = sum([each.used_pct for each in running])
    return [max(1.0, used / _WHOLE_PCT)] * len(running)


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
