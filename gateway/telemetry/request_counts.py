"""Counters of requests: one count per request, exposed to Prometheus as three metrics.

prometheus_client takes a lock and several calls for each of them; one event loop needs neither.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

if TYPE_CHECKING:
    from collections.abc import Iterable


class RequestOutcome(NamedTuple):
    """Labels of a request that ended."""

    model: str
    policy: str
    reason: str
    tier: str
    """The tier it had to wait from; empty if no pod responded."""
    code: int


class RequestCounts(Collector):
    """Number of requests by outcome."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts: defaultdict[RequestOutcome, int] = defaultdict(int)
        registry.register(self)

    def add(self, outcome: RequestOutcome) -> None:
        self._counts[outcome] += 1

    def collect(self) -> Iterable[CounterMetricFamily]:
        requests, decisions, starts = (defaultdict[tuple[str, ...], int](int) for _ in range(3))
        counts = dict(self._counts)  # called in a thread: an iteration could see a change
        for outcome, count in counts.items():
            requests[outcome.model, outcome.policy, str(outcome.code)] += count
            decisions[outcome.policy, outcome.reason] += count
            if outcome.tier:
                starts[outcome.model, outcome.tier] += count
        yield _family("requests", "Responses to requests.", ("model", "policy", "code"), requests)
        yield _family(
            "decisions", "Requests by the reason of their last decision.",
            ("policy", "reason"), decisions,
        )  # fmt: skip
        yield _family("starts", "Responses by the tier they had to wait from.", ("model", "tier"),
                      starts)  # fmt: skip


def _family(
    name: str, documentation: str, labels: tuple[str, ...], counts: dict[tuple[str, ...], int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"pilotlight_gateway_{name}", documentation, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
