"""Counts per bin of time as arrivals: as many as were counted, inside their bin.

Sources: Shahrad et al. 2020 publish counts per minute. Blinowski et al. 2024, section 5.4, draw the
arrivals of a minute uniformly; Li et al. 2023 (AlpaServe), section 6.1, by a Gamma process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


_EVEN: Final = 1e-6
"""A coefficient of variation below which gaps are equal: nobody sees the difference."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Counts larger than 0: arrays of one length, sorted by bin; a bin is never cut in two."""

    start_s: NDArray[np.float64]
    function: NDArray[np.int32]
    count: NDArray[np.int64]


def portions(cells: Cells, most: int) -> Iterator[Cells]:
    """The same cells in parts of about `most` arrivals, cut between bins."""
    ends = np.flatnonzero(np.diff(cells.start_s, append=np.inf)) + 1
    arrivals = np.cumsum(cells.count)[ends - 1] if len(ends) else np.zeros(0, np.int64)
    begin, done = 0, 0
    for end, until in zip(ends.tolist(), arrivals.tolist(), strict=True):
        if until - done >= most or end == len(cells.start_s):
            rows = slice(begin, end)
            yield Cells(cells.start_s[rows], cells.function[rows], cells.count[rows])
            begin, done = end, until


@dataclass(frozen=True, slots=True)
class Expanded:
    """Arrivals sorted by time, with the function each calls."""

    at_s: NDArray[np.float64]
    function: NDArray[np.int32]


def expand(cells: Cells, *, bin_s: float, cv: float | None, rng: np.random.Generator) -> Expanded:
    """Every counted arrival at a time in [start, start + bin), each cell on its own.

    Uniform where `cv` is None. Else the gaps are of a Gamma law with that coefficient of variation,
    scaled so that the count and one more gap fill the bin: 0 spaces evenly, 1 is uniform in law,
    more is bursty.
    """
    total = int(cells.count.sum())
    share = rng.random(total) if cv is None else _spaced(cells.count, cv, rng)
    start_s = np.repeat(cells.start_s, cells.count)
    at_s = np.minimum(start_s + share * bin_s, np.nextafter(start_s + bin_s, -np.inf))
    order = np.argsort(at_s, kind="stable")
    return Expanded(at_s[order], np.repeat(cells.function, cells.count)[order])


def _spaced(count: NDArray[np.int64], cv: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Where in its bin, from 0 to 1, each arrival falls; cell after cell."""
    gaps_of = count + 1
    gaps = unit_gaps(int(gaps_of.sum()), cv, rng)
    first = np.cumsum(gaps_of) - gaps_of
    sums = np.add.reduceat(gaps, first) if len(first) else gaps
    # Where every draw of a cell underflowed to 0, all its arrivals come together.
    gaps[first] += np.where(sums > 0.0, 0.0, 1.0)
    sums = np.where(sums > 0.0, sums, 1.0)
    steps = gaps / np.repeat(sums, gaps_of)
    last = first + count
    ends = np.cumsum(steps)
    share = ends - np.repeat(ends[first] - steps[first], gaps_of)
    inner: NDArray[np.float64] = np.clip(np.delete(share, last), 0.0, 1.0)
    return inner


def unit_gaps(count: int, cv: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Gaps of mean 1 with coefficient of variation `cv`: Gamma of shape 1/cv^2, or all equal."""
    if cv < _EVEN:
        return np.ones(count)
    shape = 1.0 / cv**2
    return rng.standard_gamma(shape, count) / shape
