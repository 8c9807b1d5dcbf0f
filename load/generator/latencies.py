"""A histogram of latencies for live percentiles: 5 % wide buckets, added up over workers."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEAST_S: Final = 1e-5
_STEP: Final = math.log(1.05)


def bucket_of(latency_s: float) -> int:
    """The bucket of a latency."""
    return int(math.log(max(latency_s, _LEAST_S) / _LEAST_S) / _STEP)


def percentile_s(counts: Mapping[int, int], fraction: float) -> float:
    """The upper bound of the bucket that holds a percentile; NaN without any counts."""
    wanted = fraction * sum(counts.values())
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= wanted:
            return _LEAST_S * math.exp((bucket + 1) * _STEP)
    return math.nan


class Latencies(Counter[int]):
    """Counts by bucket."""

    def observe(self, latency_s: float) -> None:
        """Count one latency."""
        self[bucket_of(latency_s)] += 1
