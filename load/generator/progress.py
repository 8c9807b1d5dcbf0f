"""How far a run is: what the workers tell, added up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from load.generator.latencies import percentile_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A run at one moment, over all its processes."""

    requests: int
    """Of the whole trace."""
    due: int = 0
    done: int = 0
    in_flight: int = 0
    late: int = 0
    by_status: Counter[int] = field(default_factory=Counter)
    latencies: Counter[int] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        """Requests without a 2xx answer."""
        return sum(n for status, n in self.by_status.items() if not 200 <= status < 300)

    def latency_s(self, fraction: float) -> float:
        """A percentile of the answered requests' latency, within 5 %."""
        return percentile_s(self.latencies, fraction)


def added_up(requests: int, told: Iterable[Mapping[str, Any]]) -> RunProgress:
    """The progress of a run from the latest word of each worker."""
    sums: Counter[str] = Counter()
    by_status: Counter[int] = Counter()
    latencies: Counter[int] = Counter()
    for each in told:
        sums.update({key: each[key] for key in ("due", "done", "in_flight", "late")})
        by_status.update({int(key): count for key, count in each["by_status"].items()})
        latencies.update({int(key): count for key, count in each["latencies"].items()})
    return RunProgress(
        requests, sums["due"], sums["done"], sums["in_flight"], sums["late"], by_status, latencies
    )
