"""Latencies in buckets of fixed relative width: memory depends on the names, not the requests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from load.report.aggregates import PERCENTILE_NAMES, PERCENTILES, Percentiles, groups, percentiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from load.report.run import Floats, Ints

_STEP: Final = 0.01
"""Each bucket is 1 % wider than the one before: the error of a percentile is at most 0.5 %."""
_MIN_S: Final = 1e-6
_BUCKETS: Final = 1 << 13
"""Enough for latencies from a microsecond to 1e29 s."""
_SPARSE: Final = 32
"""Ratio of possible keys to given ones above which sorting is cheaper than an array of counts."""


class StreamingLatencies:
    """Counts by code of a name and bucket; see `load.report.aggregates.Latencies`."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        """By code * `_BUCKETS` + bucket."""
        self._total_s = np.zeros(0)
        """By code, like `_longest_s`."""
        self._longest_s = np.zeros(0)

    def add(self, codes: Ints, seconds: Floats) -> None:
        if not len(codes):
            return
        if (more := int(codes.max()) + 1 - len(self._total_s)) > 0:
            self._total_s, self._longest_s = (
                np.pad(each, (0, more)) for each in (self._total_s, self._longest_s)
            )
        self._total_s += np.bincount(codes, seconds, minlength=len(self._total_s))
        np.maximum.at(self._longest_s, codes, seconds)
        buckets = (np.log(np.maximum(seconds, _MIN_S) / _MIN_S) / _STEP).astype(np.int64)
        keys = codes * _BUCKETS + buckets
        for key, count in zip(*_counted(keys, _BUCKETS * len(self._total_s)), strict=True):
            self._counts[key] += count

    def mean_s(self) -> float:
        """0 without requests."""
        return float(self._total_s.sum()) / max(1, self._counts.total())

    def quantiles_s(self, shares: Sequence[float]) -> list[float]:
        """The latencies that these shares of the requests do not exceed; 0 if there are none."""
        if not self._counts:
            return [0.0] * len(shares)
        keys, counts = self._arrays()
        return _quantiles_s(keys % _BUCKETS, counts, shares, float(self._longest_s.max()))

    def overall(self) -> Percentiles:
        if not self._counts:
            return percentiles(np.zeros(0))
        found = self.quantiles_s([each / 100 for each in PERCENTILES])
        return _named(found, float(self._longest_s.max()))

    def by_code(self) -> Iterator[tuple[int, Percentiles]]:
        keys, counts = self._arrays()
        for mine in groups(keys // _BUCKETS):
            code = int(keys[mine[0]]) // _BUCKETS
            longest_s = float(self._longest_s[code])
            shares = [each / 100 for each in PERCENTILES]
            found = _quantiles_s(keys[mine] % _BUCKETS, counts[mine], shares, longest_s)
            yield code, _named(found, longest_s)

    def _arrays(self) -> tuple[Ints, Ints]:
        """Keys in order, and their counts."""
        keys = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.int64, len(self._counts))
        order = np.argsort(keys)
        return keys[order], counts[order]


def _counted(keys: Ints, end: int) -> tuple[list[int], list[int]]:
    """The distinct keys, all below `end`, and how often each occurs."""
    if end > _SPARSE * len(keys):
        found, counts = np.unique(keys, return_counts=True)
    else:
        counts = np.bincount(keys)
        found = np.flatnonzero(counts)
        counts = counts[found]
    return found.tolist(), counts.tolist()


def _quantiles_s(
    buckets: Ints, counts: Ints, shares: Sequence[float], longest_s: float
) -> list[float]:
    """For each share, the middle of the bucket in which its quantile lies."""
    order = np.argsort(buckets, kind="stable")
    seen = np.cumsum(counts[order])
    at = np.searchsorted(seen, np.array(shares) * seen[-1])
    middle_s = _MIN_S * np.exp((buckets[order][np.minimum(at, len(seen) - 1)] + 0.5) * _STEP)
    found: list[float] = np.minimum(middle_s, longest_s).tolist()
    return found


def _named(quantiles_s: Sequence[float], longest_s: float) -> Percentiles:
    return {**dict(zip(PERCENTILE_NAMES, quantiles_s, strict=True)), "max": longest_s}
