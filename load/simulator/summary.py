"""What a run came to: counts, and latencies as a histogram of fixed relative error."""

from __future__ import annotations

from collections import Counter
from math import exp
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

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
        self.begun: Counter[str] = Counter()
        """Loads that were begun, by the model's key."""
        self.load_s = 0.0
        """Time of all loads together."""
        self.total_s = 0.0
        """Sum of the latencies."""
        self.longest_s = 0.0
        self.wasted_memory_byte_s = 0.0
        """Device memory of models that no request used, times the time that it was so."""
        self._buckets: Counter[int] = Counter()

    def add(self, records: pa.RecordBatch) -> None:
        """Requests were answered: rows of `RECORD_SCHEMA`."""
        status = records.column("status").to_numpy()
        for each, count in zip(*np.unique(status, return_counts=True), strict=True):
            self.statuses[int(each)] += int(count)
        for start in records.column("start").value_counts().to_pylist():
            if start["values"] is not None:
                self.starts[start["values"]] += start["counts"]
        finished_s, came_s = (records.column(each) for each in ("finished_s", "scheduled_s"))
        latency_s = (finished_s.to_numpy() - came_s.to_numpy())[status == 200]
        if len(latency_s):
            self.total_s += float(latency_s.sum())
            self.longest_s = max(self.longest_s, float(latency_s.max()))
            buckets = (np.log(np.maximum(latency_s, _LEAST_S) / _LEAST_S) / _STEP).astype(int)
            for bucket, count in zip(*np.unique(buckets, return_counts=True), strict=True):
                self._buckets[int(bucket)] += int(count)

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
            "wasted_memory_byte_s": self.wasted_memory_byte_s,
            "mean_s": self.mean_s,
            **{f"p{round(share * 100)}_s": self.quantile_s(share) for share in (0.5, 0.95, 0.99)},
            "longest_s": self.longest_s,
        }
