"""Metrics of the gateway. Labels are closed sets and models, never pods or requests.

Histograms and request counters are implemented here and exposed like those of prometheus_client,
which lock and walk the buckets in Python on each of the nine observations per request: a request
then takes 8 % more CPU time (`docs/benchmarks.md`). One event loop needs no locks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counts
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.telemetry.model_metrics import ModelLabels, ModelTimings, buckets_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from prometheus_client.samples import Exemplar

_STAGE_BUCKETS: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


class GatewayMetrics:
    def __init__(self, max_models: int = 200) -> None:
        """`max_models`: models with a label of their own; the others are `other`."""
        self._unread_s = 0.0
        self.registry = CollectorRegistry()
        self.labels = labels = ModelLabels(max_models)
        self.outcomes = RequestCounts(labels, self.registry)
        self.models = ModelTimings(labels, _STAGE_BUCKETS, self.registry)
        self.stages = self._histogram(
            "pilotlight_gateway_stage_seconds", "Time of each stage of a request.", "stage"
        )
        self.durations = self._histogram(
            "pilotlight_gateway_request_seconds",
            "Time from arrival to the response.",
            "policy",
        )
        self.components = self._histogram(
            "pilotlight_gateway_component_seconds",
            "Time from the request's last byte to the first of a transformer's or explainer's"
            " response.",
            "component",
        )
        self.predicted = self._histogram(
            "pilotlight_gateway_predicted_seconds",
            "Measured forecast of the decision.",
            "policy",
        )
        self.prediction_errors = self._histogram(
            "pilotlight_gateway_prediction_error_seconds",
            "Absolute difference between a measured forecast and the actual time.",
            "policy",
        )
        self.retries = Counter(
            "pilotlight_gateway_retries", "Requests retried at another pod.", ("reason",),
            registry=self.registry,
        )  # fmt: skip
        self.looks = Counter(
            "pilotlight_gateway_looks",
            "Looks at the data of requests to applications; all but those seen are planned by"
            " profiled accuracy.",
            ("outcome",), registry=self.registry,
        )  # fmt: skip
        self.events = Counter(
            "pilotlight_gateway_logger_events",
            "Events of models' loggers, by what became of them.",
            ("outcome",), registry=self.registry,
        )  # fmt: skip
        self.disconnects = Counter(
            "pilotlight_gateway_client_disconnects", "Clients that left before the response.",
            registry=self.registry,
        )  # fmt: skip
        self.unread = Gauge(
            "pilotlight_gateway_unread_connection_seconds",
            "Longest wait of a new connection until it was accepted, since the last scrape.",
            registry=self.registry,
        )  # fmt: skip
        self.waiting = Gauge(
            "pilotlight_gateway_waiting_requests", "Requests in the queue.",
            registry=self.registry,
        )  # fmt: skip
        self.reserved = Gauge(
            "pilotlight_gateway_reservations", "Reservations held now.", registry=self.registry
        )
        self.in_flight = Gauge(
            "pilotlight_gateway_requests_in_flight",
            "Requests in the queue or with a reservation; the number of gateways may follow it.",
            registry=self.registry,
        )  # fmt: skip
        self.registry_age = Gauge(
            "pilotlight_gateway_registry_age_seconds", "Age of the local cluster state.",
            registry=self.registry,
        )  # fmt: skip
        self.registry_repairs = Gauge(
            "pilotlight_gateway_registry_repairs", "Snapshots taken because updates were missed.",
            registry=self.registry,
        )  # fmt: skip

    def saw_unread(self, age_s: float) -> None:
        """A new connection had waited so long."""
        self._unread_s = max(self._unread_s, age_s)

    def take_unread_s(self) -> float:
        """The longest wait since the last call."""
        longest_s, self._unread_s = self._unread_s, 0.0
        return longest_s

    def _histogram(self, name: str, documentation: str, label: str) -> LabelledHistogram:
        return LabelledHistogram(name, documentation, label, _STAGE_BUCKETS, self.registry)


class HistogramSeries:
    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """The latest traced request of each bucket; empty without traces."""

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class LabelledHistogram(Collector):
    """A histogram with one label, observed from one thread."""

    def __init__(
        self,
        name: str,
        documentation: str,
        label: str,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._label = label
        self._bounds = tuple(bounds)
        self._series: dict[str, HistogramSeries] = {}
        registry.register(self)

    def labels(self, value: str) -> HistogramSeries:
        series = self._series.get(value)
        if series is None:
            series = self._series[value] = HistogramSeries(self._bounds)
        return series

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=[self._label])
        known = dict(self._series)  # called in a thread: an iteration could see a change
        for value, series in known.items():
            buckets = buckets_of(self._bounds, series.counts, series.exemplars)
            family.add_metric([value], buckets, series.total)
        yield family


class RequestOutcome(NamedTuple):
    """Labels of a request that ended."""

    model: str
    policy: str
    reason: str
    tier: str
    """Tier of the load that the request waited for, or `warm`; empty if no pod responded."""
    code: int


class RequestCounts(Collector):
    def __init__(self, labels: ModelLabels, registry: CollectorRegistry) -> None:
        self._labels = labels
        self._counts: defaultdict[RequestOutcome, int] = defaultdict(int)
        labels.on_gone.append(self._drop)
        registry.register(self)

    def _drop(self, gone: AbstractSet[str]) -> None:
        kept = (
            (outcome, count) for outcome, count in self._counts.items() if outcome.model not in gone
        )
        self._counts = defaultdict(int, kept)  # at once: a scrape may read it in a thread

    def add(self, outcome: RequestOutcome) -> None:
        label = self._labels.label(outcome.model)
        self._counts[outcome if label == outcome.model else outcome._replace(model=label)] += 1

    def totals(self) -> dict[str, tuple[int, int, int]]:
        """By model: requests, cold starts, and responses with a status of 500 or more."""
        totals: dict[str, tuple[int, int, int]] = {}
        for outcome, count in self._counts.items():
            requests, cold, failed = totals.get(outcome.model, (0, 0, 0))
            cold += count if outcome.tier not in ("", "warm") else 0
            failed += count if outcome.code >= 500 else 0
            totals[outcome.model] = (requests + count, cold, failed)
        return totals

    def starts(self, model: str) -> Counts[str]:
        """Responses to one model's requests by `warm`, or the tier that they waited from."""
        found = Counts[str]()
        for outcome, count in self._counts.items():
            if outcome.model == model and outcome.tier:
                found[outcome.tier] += count
        return found

    def collect(self) -> Iterable[CounterMetricFamily]:
        requests, decisions, starts = (defaultdict[tuple[str, ...], int](int) for _ in range(3))
        counts = dict(self._counts)  # called in a thread: an iteration could see a change
        for outcome, count in counts.items():
            requests[outcome.model, outcome.policy, str(outcome.code)] += count
            decisions[outcome.model, outcome.policy, outcome.reason] += count
            if outcome.tier:
                starts[outcome.model, outcome.tier] += count
        yield _family("requests", "Responses to requests.", ("model", "policy", "code"), requests)
        yield _family(
            "decisions", "Requests by the reason of their last decision.",
            ("model", "policy", "reason"), decisions,
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
