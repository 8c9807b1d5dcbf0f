"""Progress of a run: counts of each worker with a latency histogram, and their totals."""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_MIN_S: Final = 1e-5
_LOG_WIDTH: Final = math.log(1.05)


class LatencyHistogram(Counter[int]):
    """Counts by bucket; buckets are 5 % wide."""

    def observe(self, latency_s: float) -> None:
        self[int(math.log(max(latency_s, _MIN_S) / _MIN_S) / _LOG_WIDTH)] += 1

    def percentile_s(self, fraction: float) -> float:
        """The upper bound of the bucket with a percentile; NaN without any counts."""
        wanted = fraction * self.total()
        seen = 0
        for bucket in sorted(self):
            seen += self[bucket]
            if seen >= wanted:
                return _MIN_S * math.exp((bucket + 1) * _LOG_WIDTH)
        return math.nan


@dataclass(slots=True)
class SendCounts:
    """Requests so far, of one worker or of all."""

    due: int = 0
    done: int = 0
    in_flight: int = 0
    late: int = 0
    by_status: Counter[int] = field(default_factory=Counter)
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Latencies of requests without an error."""


@dataclass(slots=True)
class RunProgress(SendCounts):
    """The totals of a run at one moment."""

    requests: int = 0
    """Number of requests in the whole trace."""

    @property
    def failed(self) -> int:
        """Requests without a 2xx response."""
        return sum(n for status, n in self.by_status.items() if not 200 <= status < 300)


def total_progress(requests: int, reports: Collection[Mapping[str, Any]]) -> RunProgress:
    """The progress of a run from the latest report of each worker: SendCounts as JSON."""
    total = RunProgress(requests=requests)
    for each in reports:
        total.due += each["due"]
        total.done += each["done"]
        total.in_flight += each["in_flight"]
        total.late += each["late"]
        total.by_status.update({int(key): count for key, count in each["by_status"].items()})
        total.latencies.update({int(key): count for key, count in each["latencies"].items()})
    return total
