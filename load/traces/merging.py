"""Several traces as one, by time, in memory for a batch of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from load.traces.batches import joined, sorted_by_time, times

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from load.schema import Trace


def merged(traces: Sequence[Trace]) -> Iterator[pa.RecordBatch]:
    """All arrivals of all traces, sorted by time."""
    waiting = [iter(trace) for trace in traces]
    heads = [_next(rest) for rest in waiting]
    while live := [head for head in heads if head is not None]:
        until_s = min(float(times(head)[-1]) for head in live)
        ready = []
        for index, head in enumerate(heads):
            if head is None:
                continue
            cut = int(np.searchsorted(times(head), until_s, side="right"))
            if cut:
                ready.append(head.slice(0, cut))
            heads[index] = head.slice(cut) if cut < head.num_rows else _next(waiting[index])
        yield sorted_by_time(joined(ready))


def _next(rest: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    """The next batch that is not empty."""
    return next((batch for batch in rest if batch.num_rows), None)
