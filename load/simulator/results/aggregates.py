"""What is counted of requests by a name: their model, their policy, their tenant.

Latencies are buckets of fixed relative width, so that memory grows with the names, not with the
requests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from load.report.summary import PERCENTILES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from load.report.run import Bools, Floats, Ints

_STEP: Final = 0.01
"""Buckets grow by 1 %: a percentile is off by half of that at most."""
_LEAST_S: Final = 1e-6
_BUCKETS: Final = 1 << 13
"""More than there are from a microsecond to any float."""
_SPARSE: Final = 32
"""Places per number from which sorting them is cheaper than an array with all places."""

OK: Final = 1
GOOD: Final = 2
"""Answered, and within the deadline where there was one."""
COLD: Final = 4
MISSED: Final = 8
"""Had a deadline and was not answered by then."""
_KINDS: Final = np.arange(16)
"""Every sum of those: what a request was."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Requests as columns."""

    kind: Ints
    latency_s: Floats
    bucket: Ints
    """Of the latency."""

    @classmethod
    def of(
        cls, latency_s: Floats, *, is_ok: Bools, is_good: Bools, is_cold: Bools, is_missed: Bools
    ) -> Answered:
        """What came of them."""
        kind = OK * is_ok + GOOD * is_good + COLD * is_cold + MISSED * is_missed
        bucket = np.log(np.maximum(latency_s, _LEAST_S) / _LEAST_S) / _STEP
        return cls(kind.astype(np.int64), latency_s, bucket.astype(np.int64))

    def some(self, rows: Bools) -> Answered:
        """Some of them."""
        return Answered(self.kind[rows], self.latency_s[rows], self.bucket[rows])


class Aggregates:
    """Counts by name, and with `times` latencies of those that were answered."""

    def __init__(self, *, times: bool) -> None:
        self._has_times = times
        self._codes: dict[str, int] = {}
        self._counts = np.zeros((0, len(_KINDS)), np.int64)
        self._total_s = np.zeros(0)
        self._longest_s = np.zeros(0)
        self._buckets: Counter[int] = Counter()

    def add(self, names: pa.DictionaryArray, answered: Answered) -> None:
        """Count requests; those without a name are left out."""
        known = names.dictionary.to_pylist()
        own = np.array([self._codes.setdefault(name, len(self._codes)) for name in known], np.int64)
        local = names.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        if names.null_count:
            answered, local = answered.some(local >= 0), local[local >= 0]
        if len(local):
            self._grow()
            codes = own[local]
            found = np.bincount(codes * len(_KINDS) + answered.kind, minlength=self._counts.size)
            self._counts += found.reshape(self._counts.shape)
            if self._has_times:
                is_ok = answered.kind & OK != 0
                self._add_times(codes[is_ok], answered.some(is_ok))

    def _grow(self) -> None:
        more = len(self._codes) - len(self._counts)
        if more:
            self._counts = np.pad(self._counts, ((0, more), (0, 0)))
            self._total_s, self._longest_s = (
                np.pad(each, (0, more)) for each in (self._total_s, self._longest_s)
            )

    def _add_times(self, codes: Ints, answered: Answered) -> None:
        self._total_s += np.bincount(codes, answered.latency_s, minlength=len(self._codes))
        np.maximum.at(self._longest_s, codes, answered.latency_s)
        keys = codes * _BUCKETS + answered.bucket
        for key, count in zip(*_counted(keys, _BUCKETS * len(self._codes)), strict=True):
            self._buckets[key] += count

    def count(self, kind: int) -> int:
        """Of all names: requests that are `OK`, `GOOD`, `COLD` or `MISSED`."""
        return int(self._by_name(kind).sum())

    def _by_name(self, kind: int) -> Ints:
        found: Ints = self._counts[:, _KINDS & kind != 0].sum(axis=1)
        return found

    def good_shares(self) -> list[float]:
        """For each name the share of its requests that were answered in time."""
        shares: list[float] = (self._by_name(GOOD) / self._counts.sum(axis=1)).tolist()
        return shares

    def mean_s(self) -> float:
        """Mean latency over all names; 0 where nothing was answered."""
        return float(self._total_s.sum()) / max(1, self.count(OK))

    def quantiles_s(self, shares: Sequence[float]) -> list[float]:
        """The latencies that these shares of the answers did not exceed, over all names."""
        if not self._buckets:
            return [0.0] * len(shares)
        keys, counts = _arrays(self._buckets)
        return _quantiles(keys % _BUCKETS, counts, shares, longest_s=float(self._longest_s.max()))

    def latency_s(self) -> dict[str, float | None]:
        """Percentiles and the longest, over all names, as a run's summary has them."""
        if not self._buckets:
            return _percentiles(None)
        keys, counts = _arrays(self._buckets)
        return _percentiles((keys % _BUCKETS, counts), float(self._longest_s.max()))

    def documents(self) -> dict[str, Any]:
        """By name, most requests first, as a run's summary has them."""
        latencies = dict(self._latencies())
        columns = [each.tolist() for each in (
            self._counts.sum(axis=1), self._by_name(OK), self._by_name(COLD), self._by_name(MISSED),
        )]  # fmt: skip
        found = sorted(
            zip(self._codes, *columns, strict=True), key=lambda each: (-each[1], each[0])
        )
        return {
            name: {
                "requests": requests,
                "ok": ok,
                "cold_starts": cold,
                "deadline_misses": missed,
                "latency_s": latencies.get(self._codes[name]) or _percentiles(None),
            }
            for name, requests, ok, cold, missed in found
            if requests
        }

    def _latencies(self) -> Iterator[tuple[int, dict[str, float | None]]]:
        keys, counts = _arrays(self._buckets)
        codes, buckets = keys // _BUCKETS, keys % _BUCKETS
        edges = np.flatnonzero(np.diff(codes)) + 1
        for mine in np.split(np.arange(len(keys)), edges):
            if len(mine):
                code = int(codes[mine[0]])
                yield code, _percentiles((buckets[mine], counts[mine]), self._longest_s[code])


def _counted(keys: Ints, end: int) -> tuple[list[int], list[int]]:
    """Which numbers below `end` there are, and how many of each."""
    if end > _SPARSE * len(keys):
        found, counts = np.unique(keys, return_counts=True)
    else:  # no need to sort
        counts = np.bincount(keys)
        found = np.flatnonzero(counts)
        counts = counts[found]
    return found.tolist(), counts.tolist()


def _arrays(counter: Counter[int]) -> tuple[Ints, Ints]:
    """Keys in order, and their counts."""
    keys = np.fromiter(counter.keys(), np.int64, len(counter))
    counts = np.fromiter(counter.values(), np.int64, len(counter))
    order = np.argsort(keys)
    return keys[order], counts[order]


def _quantiles(
    buckets: Ints, counts: Ints, shares: Sequence[float], *, longest_s: float
) -> list[float]:
    """The middle of the bucket in which each lies."""
    order = np.argsort(buckets, kind="stable")
    seen = np.cumsum(counts[order])
    at = np.searchsorted(seen, np.array(shares) * seen[-1])
    middle_s = _LEAST_S * np.exp((buckets[order][np.minimum(at, len(seen) - 1)] + 0.5) * _STEP)
    found: list[float] = np.minimum(middle_s, longest_s).tolist()
    return found


def _percentiles(
    histogram: tuple[Ints, Ints] | None, longest_s: float = 0.0
) -> dict[str, float | None]:
    """`p50` to `p99` and the longest; None where nothing was answered."""
    names = [f"p{each}" for each in PERCENTILES]
    if histogram is None:
        return dict.fromkeys([*names, "max"])
    shares = [each / 100 for each in PERCENTILES]
    found = _quantiles(*histogram, shares, longest_s=longest_s)
    return {**dict(zip(names, found, strict=True)), "max": float(longest_s)}
