"""Nearly sorted rows put right within a window of time, in memory for that window only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from load.errors import TraceError, UnsortedTrace
from load.traces.batches import joined, sorted_by_time, times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Located:
    """Arrivals as a file has them, a row each; `first_row` is the number of the first."""

    path: str
    first_row: int
    batch: pa.RecordBatch


def in_order(parts: Iterable[Located], *, window_s: float) -> Iterator[pa.RecordBatch]:
    """The arrivals sorted by time; equal times keep their order.

    Raises UnsortedTrace at a row that is earlier than the latest one before it by more than
    `window_s` seconds, however the rows are cut into parts; that, and what the parts raise, comes
    after the arrivals of the parts before.
    """
    held: pa.RecordBatch | None = None
    newest_s = -np.inf
    try:
        for part in parts:
            if not part.batch.num_rows:
                continue
            at_s = times(part.batch)
            newest_each = np.maximum.accumulate(np.maximum(at_s, newest_s))
            late = at_s < newest_each - window_s
            if late.any():
                raise _unsorted(part, int(np.argmax(late)), newest_each, window_s)
            newest_s = float(newest_each[-1])
            pool = sorted_by_time(joined([part.batch] if held is None else [held, part.batch]))
            ready = int(np.searchsorted(times(pool), newest_s - window_s, side="left"))
            if ready:
                yield pool.slice(0, ready)
            held = pool.slice(ready)
    except TraceError:
        if held is not None and held.num_rows:
            yield held
        raise
    if held is not None and held.num_rows:
        yield held


def _unsorted(
    part: Located,
    index: int,
    newest_each: np.ndarray[tuple[int], np.dtype[np.float64]],
    window: float,
) -> UnsortedTrace:
    behind_s = float(newest_each[index] - times(part.batch)[index])
    return UnsortedTrace(
        part.path,
        part.first_row + index,
        f"arrives {behind_s:.6g} s before a row above it; up to {window:g} s is put right: "
        "sort the file by arrival, or allow more, such as window=1h",
    )
