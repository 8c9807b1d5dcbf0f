"""Virtual time: a heap of events, merged with arrivals, and coroutines that await events.

Events are tuples `(time, number, function, argument)`; events of one time run in the order in which
they were added, and arrivals are never pushed to the heap. Times in seconds since the start of the
run. `runtime.loading.load` runs here as it does on an event loop of asyncio.
"""

from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from heapq import heappop, heappush
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from load.errors import TraceError
from load.schema import TRACE_SCHEMA


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


# A trace's record batches as rows of plain values, converted column by column for speed.


MAX_ARRIVAL_S: Final = 366 * 86_400.0
"""A year: later times are probably calendar times, or milliseconds."""
Row = tuple[float, str, str, int, int, float | None, list[int] | None]
"""Time, tenant, model, input size, output size, deadline counted from the arrival, blocks."""


def rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """Raises TraceError: other columns, or an arrival more than a year after the trace's start."""
    if not batch.schema.equals(TRACE_SCHEMA):
        raise TraceError(
            f"a trace must have the columns {TRACE_SCHEMA.names}, was {batch.schema.names}"
        )
    check_times(batch)
    at_s, tenant, model, input_size, output_size, deadline_s, blocks = batch.columns
    return zip(
        _numbers(at_s),
        _names(tenant),
        _names(model),
        _numbers(input_size),
        _numbers(output_size),
        _numbers(deadline_s),
        repeat(None, len(blocks)) if blocks.null_count == len(blocks) else blocks.to_pylist(),
        strict=True,
    )


def check_times(batch: pa.RecordBatch) -> None:
    """Raises TraceError if an arrival is more than a year after the trace's start."""
    last_s = batch.column("at_s")[-1].as_py() if batch.num_rows else 0.0
    if last_s > MAX_ARRIVAL_S:
        raise TraceError(
            f"there is an arrival at {last_s:.15g} s, {last_s / 86_400:,.0f} days after the "
            f"trace's start; {MAX_ARRIVAL_S / 86_400:.0f} days at most can be simulated: times are "
            "seconds since the start, so subtract the first one with |slice=FIRSTs:, and for "
            "milliseconds add |speed=1000"
        )


def _numbers(column: pa.Array) -> Iterable[Any]:
    if column.null_count == len(column):
        return repeat(None, len(column))
    values: list[Any] = column.to_pylist() if column.null_count else column.to_numpy().tolist()
    return values


def _names(column: pa.DictionaryArray) -> list[str]:
    names = column.dictionary.to_pylist()
    return [names[at] for at in column.indices.to_numpy().tolist()]
