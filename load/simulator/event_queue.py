"""Virtual time: events in a heap, and arrivals that are merged in without being pushed.

Events are tuples `(time, number, function, argument)`; equal times run in the order in which they
were set. Times in seconds since the start of the run.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from load.simulator.errors import WrongTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class EventQueue:
    """The clock of a run and what is to happen in it."""

    __slots__ = ("_heap", "_number", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self._number = 0

    def now(self) -> float:
        """The time, for those who take a clock."""
        return self.now_s

    def at(self, when_s: float, do: Callable[[Any], object], argument: Any = None) -> None:
        """Call `do(argument)` at a time, not before now."""
        self._number = number = self._number + 1
        heappush(self._heap, (when_s, number, do, argument))

    def after(self, delay_s: float, do: Callable[[Any], object], argument: Any = None) -> None:
        """Call `do(argument)` in so many seconds."""
        self._number = number = self._number + 1
        heappush(self._heap, (self.now_s + delay_s, number, do, argument))

    def run_through(
        self, arrivals: Iterable[tuple[Any, ...]], arrive: Callable[[Any], object]
    ) -> None:
        """Let time pass until all of these arrivals have come; events of the same time go first.

        An arrival begins with its time.

        Raises WrongTrace where arrivals are not in the order of their times.
        """
        heap, pop = self._heap, heappop
        for arrival in arrivals:
            arrival_s: float = arrival[0]
            while heap and heap[0][0] <= arrival_s:
                self.now_s, _, do, argument = pop(heap)
                do(argument)
            if arrival_s < self.now_s:
                raise WrongTrace(f"the trace goes back from {self.now_s} s to {arrival_s} s")
            self.now_s = arrival_s
            arrive(arrival)

    def run_some(self, most: int, *, until: Callable[[], bool]) -> bool:
        """Run events, `most` of them at most; False: none is left, or `until` holds."""
        heap, pop = self._heap, heappop
        for _ in range(most):
            if not heap or until():
                return False
            self.now_s, _, do, argument = pop(heap)
            do(argument)
        return True
