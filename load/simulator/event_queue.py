"""Virtual time: a heap of events, merged with arrivals, and coroutines that await events.

Events are tuples `(time, number, function, argument)`; events of one time run in the order in which
they were added, and arrivals are never pushed to the heap. Times in seconds since the start of the
run. `runtime.loading.load` runs here as it does on an event loop of asyncio.
"""

from collections.abc import Callable, Coroutine, Generator, Iterable
from heapq import heappop, heappush
from typing import Any

from load.errors import TraceError


class EventQueue:
    """The clock of a run, and its future events."""

    __slots__ = ("_heap", "_number", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self._number = 0

    def now(self) -> float:
        """`now_s` as a function, for code that takes a clock."""
        return self.now_s

    def at(self, when_s: float, do: Callable[[Any], object], argument: Any = None) -> None:
        """Call `do(argument)` at a time, which must not be in the past."""
        self._number = number = self._number + 1
        heappush(self._heap, (when_s, number, do, argument))

    def after(self, delay_s: float, do: Callable[[Any], object], argument: Any = None, /) -> None:
        self._number = number = self._number + 1
        heappush(self._heap, (self.now_s + delay_s, number, do, argument))

    def run_through(
        self, arrivals: Iterable[tuple[Any, ...]], arrive: Callable[[Any], object]
    ) -> None:
        """Run events and arrivals in order of time, up to the last arrival.

        The first field of an arrival is its time; events of the same time run before it.

        Raises TraceError if the times are not in ascending order.
        """
        heap, pop = self._heap, heappop
        for arrival in arrivals:
            arrival_s: float = arrival[0]
            while heap and heap[0][0] <= arrival_s:
                self.now_s, _, do, argument = pop(heap)
                do(argument)
            if arrival_s < self.now_s:
                raise TraceError(f"the trace goes back from {self.now_s} s to {arrival_s} s")
            self.now_s = arrival_s
            arrive(arrival)

    def run_some(self, limit: int, *, until: Callable[[], bool]) -> bool:
        """Run at most `limit` events; False if none is left or `until` returns True."""
        heap, pop = self._heap, heappop
        for _ in range(limit):
            if not heap or until():
                return False
            self.now_s, _, do, argument = pop(heap)
            do(argument)
        return True


class VirtualTasks:
    """The coroutines of one simulated process; after `close` no coroutine continues."""

    __slots__ = ("_is_closed",)

    def __init__(self) -> None:
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True

    def future(self) -> "VirtualFuture":
        return VirtualFuture(self)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine to its end, or until it awaits a future without a result."""
        if self._is_closed:
            coroutine.close()
            return
        try:
            future: VirtualFuture = coroutine.send(None)
        except StopIteration:
            return
        future.coroutine = coroutine


class VirtualFuture:
    """A result that one coroutine awaits; the first call of `set` counts."""

    __slots__ = ("_result", "_tasks", "coroutine", "is_set")

    def __init__(self, tasks: VirtualTasks) -> None:
        self._tasks = tasks
        self._result = False
        self.is_set = False
        self.coroutine: Coroutine[Any, Any, None] | None = None
        """The coroutine that awaits this future."""

    def set(self, result: bool) -> None:
        """Set the result, and continue the coroutine that awaits it."""
        if self.is_set:
            return
        self.is_set = True
        self._result = result
        if self.coroutine is not None:
            self._tasks.run(self.coroutine)

    def __await__(self) -> "Generator[VirtualFuture, None, bool]":
        if not self.is_set:
            yield self
        return self._result
