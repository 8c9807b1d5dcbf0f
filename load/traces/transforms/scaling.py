"""Scaling of a trace's time and rate."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import pyarrow as pa
from pydantic import Field

from load.errors import TraceError
from load.traces.batches import BATCH_ROWS, even_batches, times_s, with_column
from load.traces.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from load.schema import Trace
    from load.traces.parameters import Value
    from load.traces.seeds import Seed


MAX_COPIES: Final = 10_000
"""Copies of one arrival: beyond it, too little of the original trace is left."""
RateFactor = Annotated[float, Field(gt=0, le=MAX_COPIES)]
SpeedFactor = Annotated[float, Field(ge=1e-6, le=1e6)]


def speed(trace: Trace, given: Value[float], _: Seed) -> Iterator[pa.RecordBatch]:
    """Time passes `value` times as fast; deadlines are unchanged."""
    for batch in trace:
        yield with_column(batch, "at_s", times_s(batch) / given.value)


def shift(trace: Trace, given: Value[float], _: Seed) -> Iterator[pa.RecordBatch]:
    """All arrivals `value` seconds later, for use in mixes of traces."""
    for batch in trace:
        yield with_column(batch, "at_s", times_s(batch) + given.value)


def rate(trace: Trace, given: Value[float], seed: Seed) -> Iterator[pa.RecordBatch]:
    """`value` times as many arrivals in the same time.

    Each arrival is copied `value` times on average: the whole part always, one more with the
    fraction as probability. Copies are placed uniformly between the arrival and the next one, which
    keeps the trace's own variations of the rate.
    """
    return _copied(trace, given.value, seed)


def mean_rate(trace: Trace, given: Value[float], seed: Seed) -> Iterator[pa.RecordBatch]:
    """The rate scaled to a mean of `value` requests per second; reads the trace twice.

    Source: Zhang et al. 2025, section 8. The mean is over the time until the last arrival.
    """
    total = summarise(trace)
    if not total.last_s > 0.0:
        raise TraceError(
            f"rps cannot scale a trace whose arrivals are all at its start; it has {total.arrivals}"
        )
    factor = given.value * total.last_s / total.arrivals
    if factor > MAX_COPIES:
        raise TraceError(
            f"rps={given.value:g} is {factor:.6g} times the trace's own rate; at most {MAX_COPIES}"
        )
    return _copied(trace, factor, seed)


def _copied(trace: Trace, factor: float, seed: Seed) -> Iterator[pa.RecordBatch]:
    extra_copy, places = seed.derive("copies").rng(), seed.derive("places").rng()
    whole, fraction = divmod(factor, 1.0)
    batches = even_batches(trace, max(int(BATCH_ROWS / factor), 1))
    for batch, following in pairwise(chain(batches, [None])):
        at_s = times_s(batch)
        copies = int(whole) + (extra_copy.random(len(at_s)) < fraction).astype(np.int64)
        row = np.repeat(np.arange(len(at_s)), copies)
        if not len(row):
            continue
        is_original = np.concatenate([[True], row[1:] != row[:-1]])
        next_s = at_s[-1] if following is None else times_s(following)[0]
        gap_s = np.append(at_s[1:], next_s) - at_s
        place = np.where(is_original, 0.0, places.random(len(row)))
        moved_s = np.minimum(at_s[row] + place * gap_s[row], at_s[row] + gap_s[row])
        order = np.argsort(moved_s, kind="stable")
        yield with_column(batch.take(pa.array(row[order])), "at_s", moved_s[order])
