"""Arrival times: gaps of one distribution, scaled so that the rate follows given steps.

The times of a renewal process of rate 1 are mapped through the inverse of the rate's integral. This
gives any rate and keeps the burstiness (Cinlar 1975, section 4.7, for Poisson).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from load.traces.batches import BATCH_ROWS
from load.traces.expansion import unit_gaps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RateStep:
    """A constant rate from `start_s` until `end_s`."""

    start_s: float
    end_s: float
    rate_rps: float


def arrival_times(
    steps: Iterable[RateStep], *, cv: float, rng: np.random.Generator
) -> Iterator[NDArray[np.float64]]:
    """Sorted times in seconds, in parts, until the steps end."""
    expected = 0.0
    clock = _unit_renewals(cv, rng)
    pending = next(clock)
    for step in steps:
        reached = expected + (step.end_s - step.start_s) * step.rate_rps
        while step.rate_rps > 0.0:
            ready = int(np.searchsorted(pending, reached, side="left"))
            if ready:
                at_s = step.start_s + (pending[:ready] - expected) / step.rate_rps
                yield np.clip(at_s, step.start_s, np.nextafter(step.end_s, -np.inf))
            pending = pending[ready:]
            if len(pending):
                break
            pending = next(clock)
        expected = reached


def _unit_renewals(cv: float, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Times of a renewal process of rate 1, in endless batches."""
    start = 0.0
    while True:
        times = start + np.cumsum(unit_gaps(BATCH_ROWS, cv, rng))
        start = float(times[-1])
        yield times
