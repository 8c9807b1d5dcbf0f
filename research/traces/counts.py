"""Arrivals drawn from counts per bin: uniform within each, or with Gamma distributed gaps."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from load.traces.parameters import unit_gaps

BIN_COUNT: Final = np.dtype([("start_s", "f8"), ("model", "i4"), ("count", "i8")])
BinCounts: TypeAlias = "NDArray[np.void]"
"""Rows of `BIN_COUNT`: arrivals of one model in the bin from `start_s` on; counts above 0."""


def bin_counts(start_s: ArrayLike, model: ArrayLike, count: NDArray[np.int64]) -> BinCounts:
    """One row per bin and model from three columns."""
    rows = np.empty(len(count), BIN_COUNT)
    rows["start_s"], rows["model"], rows["count"] = start_s, model, count
    return rows


def portions(counts: BinCounts, max_arrivals: int) -> Iterator[BinCounts]:
    """`counts`, sorted by bin, in parts of about `max_arrivals` arrivals, cut between bins."""
    ends = np.flatnonzero(np.diff(counts["start_s"], append=np.inf)) + 1
    begin, done = 0, 0
    for end, arrivals in zip(ends.tolist(), np.cumsum(counts["count"])[ends - 1], strict=True):
        if arrivals - done >= max_arrivals or end == len(counts):
            yield counts[begin:end]
            begin, done = end, arrivals


@dataclass(frozen=True, slots=True)
class ExpandedArrivals:
    """Arrivals sorted by time, with the code of the model that each requests."""

    at_s: NDArray[np.float64]
    model: NDArray[np.int32]


def expand(
    counts: BinCounts, *, bin_s: float, cv: float | None, rng: np.random.Generator
) -> ExpandedArrivals:
    """Draw every counted arrival in [start, start + bin), each row of `counts` independently.

    Uniform where `cv` is None (Blinowski et al. 2024, section 5.4). Otherwise gaps are Gamma
    distributed (Li et al. 2023, AlpaServe, section 6.1) with that coefficient of variation, scaled
    so that the counted gaps and one more fill the bin: 0 spaces arrivals evenly, 1 has the uniform
    distribution, higher values are bursty.
    """
    count = counts["count"]
    share = rng.random(int(count.sum())) if cv is None else _gamma_shares(count, cv, rng)
    start_s = np.repeat(counts["start_s"], count)
    at_s = np.minimum(start_s + share * bin_s, np.nextafter(start_s + bin_s, -np.inf))
    order = np.argsort(at_s, kind="stable")
    return ExpandedArrivals(at_s[order], np.repeat(counts["model"], count)[order])


def _gamma_shares(
    count: NDArray[np.int64], cv: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """The position of each arrival in its bin, in [0, 1], in the order of `count`."""
    gaps_of = count + 1
    gaps = unit_gaps(int(gaps_of.sum()), cv, rng)
    first = np.cumsum(gaps_of) - gaps_of
    sums = np.add.reduceat(gaps, first) if len(first) else gaps
    # Where all draws of a row underflowed to 0, its arrivals coincide.
    gaps[first] += np.where(sums > 0.0, 0.0, 1.0)
    sums = np.where(sums > 0.0, sums, 1.0)
    steps = gaps / np.repeat(sums, gaps_of)
    ends = np.cumsum(steps)
    share = ends - np.repeat(ends[first] - steps[first], gaps_of)
    inner: NDArray[np.float64] = np.clip(np.delete(share, first + count), 0.0, 1.0)
    return inner
