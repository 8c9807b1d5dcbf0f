"""Arrivals in order of time: nearly sorted rows within a window, and several traces merged."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from load.errors import TraceError
from load.schema import Trace
from load.traces.batches import concat, sorted_by_time, times_s
from load.traces.formats.blocks import Block


def sort_within_window(blocks: Iterable[Block], *, window_s: float) -> Iterator[pa.RecordBatch]:
    """Sort the arrivals by time (stable); only the rows of one window are in memory.

    Raises InvalidTrace at a row that is earlier than a row above it by more than `window_s`
    seconds, regardless of how the rows are cut into blocks. The arrivals of all earlier blocks are
    yielded before this error or an error of a block is raised.
    """
    held: list[pa.RecordBatch] = []
    latest_s = -np.inf
    try:
        for block in blocks:
            if not block.batch.num_rows:
                continue
            at_s = times_s(block.batch)
            latest_each = np.maximum.accumulate(np.maximum(at_s, latest_s))
            late = at_s < latest_each - window_s
            if late.any():
                row = int(np.argmax(late))
                problem = (
                    f"arrives {latest_each[row] - at_s[row]:.6g} s before a row above it; rows are "
                    f"sorted within {window_s:g} s: sort the file by arrival, or allow more, such "
                    "as window=1h"
                )
                raise block.error(row, problem)
            latest_s = float(latest_each[-1])
            merged_rows = sorted_by_time(concat([*held, block.batch]))
            ready = int(np.searchsorted(times_s(merged_rows), latest_s - window_s, side="left"))
            if ready:
                yield merged_rows.slice(0, ready)
            held = [merged_rows.slice(ready)]
    except TraceError:
        yield from held
        raise
    yield from held


def merged(traces: Sequence[Trace]) -> Iterator[pa.RecordBatch]:
    """All arrivals of all traces by time; one batch of each trace is in memory."""
    remaining = [(batch for batch in trace if batch.num_rows) for trace in traces]
    heads = [next(batches, None) for batches in remaining]
    while live := [head for head in heads if head is not None]:
        until_s = min(float(times_s(head)[-1]) for head in live)
        ready = []
        for index, head in enumerate(heads):
            if head is None:
                continue
            cut = int(np.searchsorted(times_s(head), until_s, side="right"))
            if cut:
                ready.append(head.slice(0, cut))
            rest = head.slice(cut) if cut < head.num_rows else next(remaining[index], None)
            heads[index] = rest
        yield sorted_by_time(concat(ready))
