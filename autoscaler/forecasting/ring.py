"""Ring buffer of counts per model, in bins of equal length; the clock may jump either way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import TypeAlias

    from autoscaler.forecasting.history import Floats, Integers

    Rows: TypeAlias = slice | Integers


class Ring:
    """(rows, bins) counters. Bin b (time divided by `bin_s`) is in column b modulo bins."""

    __slots__ = ("bin_s", "counts", "head")

    def __init__(
        self, rows: int, bins: int, *, bin_s: int, dtype: type[np.unsignedinteger]
    ) -> None:
        self.counts: Integers = np.zeros((rows, bins), dtype=dtype)
        self.bin_s = bin_s
        self.head = -1
        """The latest bin; the earliest is `head - bins + 1`."""

    @property
    def bins(self) -> int:
        return int(self.counts.shape[1])

    def move_to(self, time_s: float) -> None:
        """Make the bin of `time_s` the latest one; drops bins that are then too old or ahead."""
        new = int(time_s // self.bin_s)
        if abs(new - self.head) >= self.bins:
            self.counts[:] = 0
        elif new > self.head:
            self.counts[:, np.arange(self.head + 1, new + 1) % self.bins] = 0
        elif new < self.head:
            # Columns of bins ahead become those of the earliest bins, whose counts are lost.
            self.counts[:, np.arange(new + 1, self.head + 1) % self.bins] = 0
        self.head = new

    def add(self, rows: Integers, times_s: Floats, counts: Integers) -> None:
        """Add what lies within the bins. Counters stop at the maximum of their type."""
        bins = np.floor_divide(times_s, self.bin_s).astype(np.int64)
        is_kept = (bins <= self.head) & (bins > self.head - self.bins)
        cells = rows[is_kept] * self.bins + bins[is_kept] % self.bins
        changed, index = np.unique(cells, return_inverse=True)
        sums = np.bincount(index, weights=counts[is_kept], minlength=changed.size)
        flat = self.counts.reshape(-1)
        limit = np.iinfo(self.counts.dtype).max
        flat[changed] = np.minimum(flat[changed] + sums, limit).astype(self.counts.dtype)

    def before(self, end: int, rows: Rows, length: int) -> Integers:
        """(rows, length): the bins before `end`, oldest first; bins that are not kept are 0."""
        shift = end % self.bins
        unrolled = np.concatenate([self.counts[rows, shift:], self.counts[rows, :shift]], axis=1)
        first = end - self.bins
        known_from = self.head - self.bins + 1
        if known_from > first:
            unrolled[:, : min(known_from - first, self.bins)] = 0
        if end - 1 > self.head:
            unrolled[:, max(self.head + 1 - first, 0) :] = 0
        return unrolled[:, self.bins - length :]

    def latest(self, rows: Rows) -> Integers:
        """(rows,): the counts of the current bin."""
        return self.counts[rows, self.head % self.bins].copy()

    def grow(self, rows: int) -> None:
        """Append rows of zeros."""
        more = np.zeros((rows, self.bins), dtype=self.counts.dtype)
        self.counts = np.concatenate([self.counts, more])
