"""Arrival times: gaps of one law, stretched so that the rate follows given steps.

A renewal process of rate 1 is run on the clock `integral of the rate`, which bends one process to
any rate and keeps its burstiness (Cinlar 1975, section 4.7, for Poisson).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from load.traces.batches import BATCH_ROWS
from load.traces.expansion import unit_gaps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from load.synthetic.rates import Step


def arrival_times(
    steps: Iterable[Step], *, cv: float, rng: np.random.Generator
) -> Iterator[NDArray[np.float64]]:
    """Sorted times in seconds, some at a time, until the steps end."""
    expected = 0.0
    clock = _clock(cv, rng)
    pending = next(clock)
    for step in steps:
        reach = expected + (step.end_s - step.start_s) * step.rate_rps
        while step.rate_rps > 0.0:
            ready = int(np.searchsorted(pending, reach, side="left"))
            if ready:
                at_s = step.start_s + (pending[:ready] - expected) / step.rate_rps
                yield np.clip(at_s, step.start_s, np.nextafter(step.end_s, -np.inf))
            pending = pending[ready:]
            if len(pending):
                break
            pending = next(clock)
        expected = reach


def _clock(cv: float, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Times of a renewal process of rate 1, without end."""
    start = 0.0
    while True:
        ticks = start + np.cumsum(unit_gaps(BATCH_ROWS, cv, rng))
        start = float(ticks[-1])
        yield ticks
