"""The cores of a simulated machine, shared by the work of all its pods.

Work runs at its own speed while its demand and all others' fit the cores; else each gets what is
fair, as by Linux' scheduler: nobody gets more than it needs, and what one leaves the others share
by their number of threads (max-min fairness).
"""

from collections.abc import Callable
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
