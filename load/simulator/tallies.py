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


@dataclass(frozen=True, slots=True)
class Answered:
    """Requests as columns."""

    latency_s: Floats
    is_ok: Bools
    is_good: Bools
    """Answered, and within the deadline where there was one."""
    is_cold: Bools
    is_missed: Bools
    """Had a deadline and was not answered by then."""

    def of(self, rows: Bools) -> Answered:
        """Some of them."""
        return Answered(
            self.latency_s[rows],
            self.is_ok[rows],
            self.is_good[rows],
            self.is_cold[rows],
            self.is_missed[rows],
        )


class Tallies:
    """Counts, and latencies of those that were answered, by name."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._counts: dict[str, Ints] = {
            each: np.zeros(0, np.int64) for each in ("all", "ok", "good", "cold", "missed")
        }
        self._total_s = np.zeros(0)
        self._longest_s = np.zeros(0)
        self._buckets: Counter[int] = Counter()

    def add(self, names: pa.DictionaryArray, answered: Answered) -> None:
        """Count requests; those without a name are left out."""
        known = names.dictionary.to_pylist()
        own = np.array([self._codes.setdefault(name, len(self._codes)) for name in known], np.int64)
        local = names.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        if (local < 0).any():
            answered, local = answered.of(local >= 0), local[local >= 0]
        if len(local):
            self._grow()
            self._count(own[local], answered)

    def _grow(self) -> None:
        more = (0, len(self._codes) - len(self._total_s))
        if more[1]:
            self._counts = {key: np.pad(each, more) for key, each in self._counts.items()}
            self._total_s, self._longest_s = (
                np.pad(each, more) for each in (self._total_s, self._longest_s)
            )

    def _count(self, codes: Ints, answered: Answered) -> None:
        for key, which in (
            ("all", None),
            ("ok", answered.is_ok),
            ("good", answered.is_good),
            ("cold", answered.is_cold),
            ("missed", answered.is_missed),
        ):
            chosen = codes if which is None else codes[which]
            self._counts[key] += np.bincount(chosen, minlength=len(self._codes))
        latency_s, codes = answered.latency_s[answered.is_ok], codes[answered.is_ok]
        self._total_s += np.bincount(codes, latency_s, minlength=len(self._codes))
        np.maximum.at(self._longest_s, codes, latency_s)
        bucket = np.log(np.maximum(latency_s, _LEAST_S) / _LEAST_S) / _STEP
        keys, counts = np.unique(codes * _BUCKETS + bucket.astype(np.int64), return_counts=True)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            self._buckets[key] += count

    def count(self, key: str) -> int:
        """Of all names: `all`, `ok`, `good`, `cold` or `missed`."""
        return int(self._counts[key].sum())

    def good_shares(self) -> list[float]:
        """For each name the share of its requests that were answered in time."""
        shares: list[float] = (self._counts["good"] / np.maximum(1, self._counts["all"])).tolist()
        return shares

    def mean_s(self) -> float:
        """Mean latency over all names; 0 where nothing was answered."""
        return float(self._total_s.sum()) / max(1, self.count("ok"))

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
        names = list(self._codes)
        order = sorted(
            self._codes.values(), key=lambda code: (-self._counts["all"][code], names[code])
        )
        return {
            names[code]: {
                "requests": int(self._counts["all"][code]),
                "ok": int(self._counts["ok"][code]),
                "cold_starts": int(self._counts["cold"][code]),
                "deadline_misses": int(self._counts["missed"][code]),
                "latency_s": latencies.get(code) or _percentiles(None),
            }
            for code in order
            if self._counts["all"][code]
        }

    def _latencies(self) -> Iterator[tuple[int, dict[str, float | None]]]:
        keys, counts = _arrays(self._buckets)
        codes, buckets = keys // _BUCKETS, keys % _BUCKETS
        edges = np.flatnonzero(np.diff(codes)) + 1
        for mine in np.split(np.arange(len(keys)), edges):
            if len(mine):
                code = int(codes[mine[0]])
                yield code, _percentiles((buckets[mine], counts[mine]), self._longest_s[code])


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
