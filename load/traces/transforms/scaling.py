"""Faster, slower, denser, thinner: scaling of a trace's time and rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import pyarrow as pa
from pydantic import Field

from load.errors import TraceError
from load.traces.batches import BATCH_ROWS, even_batches, replaced, times
from load.traces.parameters import DurationS, Parameters, Rate
from load.traces.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from load.schema import Trace
    from load.traces.seeds import Seed


MOST_COPIES: Final = 10_000
"""Of one arrival: beyond it, a trace has too little of its own left."""


class RateParameters(Parameters):
    """How many times as many arrivals."""

    value: Annotated[float, Field(gt=0, le=MOST_COPIES)]


class MeanRateParameters(Parameters):
    """Requests per second."""

    value: Rate


class SpeedParameters(Parameters):
    """How many times as fast."""

    value: Annotated[float, Field(ge=1e-6, le=1e6)]


class ShiftParameters(Parameters):
    """One duration."""

    value: DurationS


def speed(trace: Trace, given: SpeedParameters, _: Seed) -> Iterator[pa.RecordBatch]:
    """Time runs `value` times as fast: all arrivals, in a shorter time; deadlines stay."""
    for batch in trace:
        yield replaced(batch, "at_s", times(batch) / given.value)


def shift(trace: Trace, given: ShiftParameters, _: Seed) -> Iterator[pa.RecordBatch]:
    """Everything later by `value` seconds, for traces that are put together."""
    for batch in trace:
        yield replaced(batch, "at_s", times(batch) + given.value)


def rate(trace: Trace, given: RateParameters, seed: Seed) -> Iterator[pa.RecordBatch]:
    """`value` times as many arrivals in the same time.

    Each arrival stands `value` times on average: the whole part for certain, one more with the
    fraction as its chance. Copies fall at random between it and the next arrival, so that the
    trace's own rises and falls are kept.
    """
    return _copied(trace, given.value, seed)


def _copied(trace: Trace, factor: float, seed: Seed) -> Iterator[pa.RecordBatch]:
    draws, places = seed.of("copies").rng(), seed.of("places").rng()
    whole, fraction = divmod(factor, 1.0)
    for batch, next_s in _with_next(even_batches(trace, max(int(BATCH_ROWS / factor), 1))):
        more = draws.random(batch.num_rows) < fraction
        copies = int(whole) + more.astype(np.int64)
        row = np.repeat(np.arange(batch.num_rows), copies)
        if not len(row):
            continue
        first = np.concatenate([[True], row[1:] != row[:-1]])
        at_s = times(batch)
        gap_s = np.append(at_s[1:], next_s) - at_s
        place = np.where(first, 0.0, places.random(len(row)))
        moved = np.minimum(at_s[row] + place * gap_s[row], at_s[row] + gap_s[row])
        order = np.argsort(moved, kind="stable")
        yield replaced(batch.take(pa.array(row[order])), "at_s", moved[order])


def mean_rate(trace: Trace, given: MeanRateParameters, seed: Seed) -> Iterator[pa.RecordBatch]:
    """The rate scaled to `value` requests per second on average; reads the trace twice.

    Source: Zhang et al. 2025, section 8. The mean is over the time until the last arrival.
    """
    found = summarise(trace)
    if not found.last_s > 0.0:
        raise TraceError(
            f"rps needs arrivals over some time to scale; the trace has {found.arrivals} "
            "arrivals, all at its start"
        )
    factor = given.value * found.last_s / found.arrivals
    if factor > MOST_COPIES:
        raise TraceError(
            f"rps={given.value:g} is {factor:.6g} times the trace's own rate; at most {MOST_COPIES}"
        )
    return _copied(trace, factor, seed)


def _with_next(trace: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Each batch with the time of the arrival after it; the last one's own last time."""
    held: pa.RecordBatch | None = None
    for batch in trace:
        if not batch.num_rows:
            continue
        if held is not None:
            yield held, float(times(batch)[0])
        held = batch
    if held is not None:
        yield held, float(times(held)[-1])
