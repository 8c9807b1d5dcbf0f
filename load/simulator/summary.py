"""What a run came to: counts, and latencies as a histogram of fixed relative error."""

from __future__ import annotations

from collections import Counter
from math import exp, log
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.model import Tier

_STEP: Final = 0.01
"""Buckets grow by 1 %: a percentile is off by half of that at most."""
_LEAST_S: Final = 1e-6


class Summary:
    """Counts of one run. Latencies are those of requests that were answered with 200."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.starts: Counter[str] = Counter()
        self.loads: Counter[str] = Counter()
        self.load_s = 0.0
        """Time of all loads together."""
        self.total_s = 0.0
        """Sum of the latencies."""
        self.longest_s = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, status: int, start: str | None, latency_s: float) -> None:
        """A request was answered."""
        self.statuses[status] += 1
        if start:
            self.starts[start] += 1
        if status == 200:
            self.total_s += latency_s
            self.longest_s = max(self.longest_s, latency_s)
            self._buckets[int(log(max(latency_s, _LEAST_S) / _LEAST_S) / _STEP)] += 1

    def loaded(self, source: Tier, seconds: float) -> None:
        """A model was brought to a device."""
        self.loads[source.value] += 1
        self.load_s += seconds

    @property
    def requests(self) -> int:
        """All requests."""
        return self.statuses.total()

    @property
    def mean_s(self) -> float:
        """Mean latency."""
        return self.total_s / max(1, self.statuses[200])

    def quantile_s(self, share: float) -> float:
        """The latency that this share of the answers did not exceed, within 1 %."""
        wanted = share * self._buckets.total()
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(self.longest_s, _LEAST_S * exp((bucket + 0.5) * _STEP))
        return 0.0

    def document(self) -> Mapping[str, Any]:
        """Everything as JSON."""
        return {
            "requests": self.requests,
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "starts": dict(sorted(self.starts.items())),
            "cold_starts": self.starts.total() - self.starts["warm"],
            "loads": dict(sorted(self.loads.items())),
            "load_s": self.load_s,
            "mean_s": self.mean_s,
            **{f"p{round(share * 100)}_s": self.quantile_s(share) for share in (0.5, 0.95, 0.99)},
            "longest_s": self.longest_s,
        }
