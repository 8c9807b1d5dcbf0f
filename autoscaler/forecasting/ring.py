"""Counts per model in bins of one length over a bounded past; the clock may jump either way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import TypeAlias

    from autoscaler.forecasting.history import Booleans, Floats, Integers

    Rows: TypeAlias = slice | Integers


class Ring:
    """(rows, bins) of counters. Bin b (time divided by `bin_s`) lies in column b modulo bins."""

    __slots__ = ("_counts", "bin_s", "head")

    def __init__(self, counts: Integers, *, bin_s: int, head: int) -> None:
        self._counts = counts
        self.bin_s = bin_s
        self.head = head
        """The latest bin there is; the earliest is `head - bins + 1`."""

    @classmethod
    def empty(cls, rows: int, bins: int, *, bin_s: int, kind: type[np.unsignedinteger]) -> Ring:
        """Zeros; the first `move_to` says when."""
        return cls(np.zeros((rows, bins), dtype=kind), bin_s=bin_s, head=-1)

    @property
    def counts(self) -> Integers:
        """The counters as they lie in memory, for writing them away."""
        return self._counts

    @property
    def bins(self) -> int:
        """How many bins of the past there are."""
        return int(self._counts.shape[1])

    def move_to(self, time_s: float) -> None:
        """Make the bin of `time_s` the latest one, forgetting what is then too old or to come."""
        new = int(time_s // self.bin_s)
        if abs(new - self.head) >= self.bins:
            self._counts[:] = 0
        elif new > self.head:
            self._counts[:, np.arange(self.head + 1, new + 1) % self.bins] = 0
        elif new < self.head:
            # The columns of what is to come are those of the earliest bins from now on: zeros.
            self._counts[:, np.arange(new + 1, self.head + 1) % self.bins] = 0
        self.head = new

    def add(self, rows: Integers, times_s: Floats, counts: Integers) -> Booleans:
        """Count; returns which of them lie in the past kept here. Counters stop at their limit."""
        bins = np.floor_divide(times_s, self.bin_s).astype(np.int64)
        is_kept = (bins <= self.head) & (bins > self.head - self.bins)
        cells = rows[is_kept] * self.bins + bins[is_kept] % self.bins
        changed, index = np.unique(cells, return_inverse=True)
        sums = np.bincount(index, weights=counts[is_kept], minlength=changed.size)
        flat = self._counts.reshape(-1)
        limit = np.iinfo(self._counts.dtype).max
        flat[changed] = np.minimum(flat[changed] + sums, limit).astype(self._counts.dtype)
        return is_kept

    def before(self, end: int, rows: Rows, length: int) -> Integers:
        """(rows, length): the bins before `end`, oldest first; unknown ones are 0."""
        shift = end % self.bins
        unrolled = np.concatenate([self._counts[rows, shift:], self._counts[rows, :shift]], axis=1)
        first = end - self.bins
        known_from = self.head - self.bins + 1
        if known_from > first:
            unrolled[:, : min(known_from - first, self.bins)] = 0
        if end - 1 > self.head:
            unrolled[:, max(self.head + 1 - first, 0) :] = 0
        return unrolled[:, self.bins - length :]

    def latest(self, rows: Rows) -> Integers:
        """(rows,): the counts of the bin under way."""
        return self._counts[rows, self.head % self.bins].copy()

    def clear(self, row: int) -> None:
        """Forget one row."""
        self._counts[row] = 0

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        more = np.zeros((rows - self._counts.shape[0], self.bins), dtype=self._counts.dtype)
        self._counts = np.concatenate([self._counts, more])
