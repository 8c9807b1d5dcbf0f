"""Metrics of the gateway. Labels are closed sets and models, never pods or requests.

A request that ends leaves one tuple; many are counted at once, before each reading at the latest.
Histograms are exposed like those of prometheus_client, and filled by arrays: nine observations per
request cost about 3 us instead of 10. Models beyond a bound share the label `other`, in the order
of their first requests; the series of deleted models end once others need their labels.
"""

import threading
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import accumulate, product
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from gateway.telemetry.recent_requests import RecentRequest
from registry.domain.model import name_of_key
from registry.domain.pod import Stage

OTHER: Final = "other"
UNKNOWN: Final = "unknown"
"""Label of requests that name no declared model, or that were refused before it was looked up."""
STAGES: Final = (
    Stage.QUEUE, Stage.LOAD, Stage.PREPROCESS, Stage.INFER, Stage.POSTPROCESS, Stage.NETWORK,
)  # fmt: skip
_LOOK_EVERY: Final = 64
"""Requests without a label of their own between two searches for models that are gone."""


class ModelLabels:
    """The models that have a label of their own."""

    def __init__(self, max_models: int) -> None:
        self.is_declared: Callable[[str], bool] = bool
        """Whether a labelled model still exists; all do until this is replaced."""
        self.on_gone: list[Callable[[AbstractSet[str]], None]] = []
        """Called with the labels of models that are gone, which make room."""
        self._max_models = max_models
        self._known: set[str] = set()
        self._unlabelled = 0

    def label(self, model: str) -> str:
        if model in self._known:
            return model
        if len(self._known) >= self._max_models and not self._make_room():
            return OTHER
        self._known.add(model)
        return model

    def _make_room(self) -> bool:
        self._unlabelled += 1
        if self._unlabelled % _LOOK_EVERY != 1:
            return False
        gone = {each for each in self._known if each != UNKNOWN and not self.is_declared(each)}
        self._known -= gone
        for drop in self.on_gone if gone else ():
            drop(gone)
        return bool(gone)


class HistogramSeries:
    __slots__ = ("bounds", "counts", "stages_ms", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.stages_ms = [0.0] * len(STAGES)
        """Of one model's requests: the sum of each stage."""

    def observe(self, value: float) -> None:
        observe([self], np.zeros(1, np.intp), np.array([value]))


def observe(
    series: Sequence[HistogramSeries], owners: NDArray[np.intp], values: NDArray[np.float64]
) -> None:
    """Observe each value in the series that its entry of `owners` is the index of.

    All have the same bounds.
    """
    width = len(series[0].counts)
    places = owners * width + np.searchsorted(np.asarray(series[0].bounds), values)
    counts = np.bincount(places, minlength=width * len(series)).reshape(-1, width).tolist()
    totals = np.bincount(owners, values, len(series)).tolist()
    for each, more, total in zip(series, counts, totals, strict=True):
        each.counts = [known + new for known, new in zip(each.counts, more, strict=True)]
        each.total += total


def buckets_of(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, for exposition."""
    names = [*(str(bound) for bound in bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(counts)), strict=True))


class LabelledHistogram(Collector):
    def __init__(
        self,
        name: str,
        documentation: str,
        label: str,
        bounds: Sequence[float],
        registry: CollectorRegistry,
        fold: Callable[[], None],
    ) -> None:
        """`fold` is called before each reading."""
        self._name = name
        self._documentation = documentation
        self._label = label
        self._bounds = tuple(bounds)
        self._series: dict[str, HistogramSeries] = {}
        self._fold = fold
        registry.register(self)

    def labels(self, value: str) -> HistogramSeries:
        series = self._series.get(value)
        if series is None:
            series = self._series[value] = HistogramSeries(self._bounds)
        return series

    @property
    def series(self) -> Mapping[str, HistogramSeries]:
        self._fold()
        return self._series

    def collect(self) -> Iterable[HistogramMetricFamily | SummaryMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=[self._label])
        known = dict(self.series)  # called in a thread: an iteration could see a change
        for value, series in known.items():
            buckets = buckets_of(self._bounds, series.counts)
            family.add_metric([value], buckets, series.total)
        yield family


class ModelTimings(LabelledHistogram):
    """Histograms of requests and sums of stages, by model."""

    def __init__(
        self,
        labels: ModelLabels,
        bounds: Sequence[float],
        registry: CollectorRegistry,
        fold: Callable[[], None],
    ) -> None:
        """`fold` is called before each reading."""
        super().__init__(
            "pilotlight_gateway_model_request_seconds",
            "Time from arrival to the response, by model.",
            "model",
            bounds,
            registry,
            fold,
        )
        self._labels = labels
        labels.on_gone.append(self._drop)

    def of(self, model: str) -> HistogramSeries:
        """The series that the model's requests are counted in."""
        return self.labels(self._labels.label(model))

    def _drop(self, gone: AbstractSet[str]) -> None:
        series = self._series.items()  # replaced at once: a scrape may read it in a thread
        self._series = {model: each for model, each in series if model not in gone}

    def collect(self) -> Iterable[HistogramMetricFamily | SummaryMetricFamily]:
        yield from super().collect()
        stages = SummaryMetricFamily(
            "pilotlight_gateway_model_stage_seconds",
            "Time of each stage of a request, by model.",
            labels=["model", "stage"],
        )
        for model, each in dict(self._series).items():
            for stage, stage_ms in zip(STAGES, each.stages_ms, strict=True):
                stages.add_metric([model, stage], sum(each.counts), stage_ms / 1000)
        yield stages


MAX_MODELS: Final = 200
"""With labels of their own, in the order of their first requests: each has its own histograms."""
_STAGE_BUCKETS: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_FOLDED: Final = 1024
"""Requests counted at once, if nobody reads before; about 0.7 ms."""
_OUTCOME: Final = itemgetter(2, 3, 4, 5, 6)
"""Of a `RecentRequest`: its labels, in the order of `RequestCounts`."""


class GatewayMetrics:
    def __init__(self, max_models: int = MAX_MODELS) -> None:
        """`max_models`: models with a label of their own; the others are `other`."""
        self._ended: deque[RecentRequest] = deque()
        """Those not counted yet."""
        self._lock = threading.Lock()
        self.registry = CollectorRegistry()
        self.labels = labels = ModelLabels(max_models)
        self.outcomes = RequestCounts(labels, self.registry, self.fold)
        self.models = ModelTimings(labels, _STAGE_BUCKETS, self.registry, self.fold)
        histogram = partial(
            LabelledHistogram, bounds=_STAGE_BUCKETS, registry=self.registry, fold=self.fold
        )
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self.stages = histogram(
            "pilotlight_gateway_stage_seconds", "Time of each stage of a request.", "stage"
        )
        self.durations = histogram(
            "pilotlight_gateway_request_seconds", "Time from arrival to the response.", "policy"
        )
        self.components = histogram(
            "pilotlight_gateway_component_seconds",
            "Time from the request's last byte to the first of a transformer's or explainer's"
            " response.",
            "component",
        )
        self.predicted = histogram(
            "pilotlight_gateway_predicted_seconds", "Measured forecast of the decision.", "policy"
        )
        self.prediction_errors = histogram(
            "pilotlight_gateway_prediction_error_seconds",
            "Absolute difference between a measured forecast and the actual time.",
            "policy",
        )
        self.retries = counter(
            "pilotlight_gateway_retries", "Requests retried at another pod.", ("reason",)
        )
        self.looks = counter(
            "pilotlight_gateway_looks",
            "Looks at the data of requests to applications; all but those seen are planned by"
            " profiled accuracy.",
            ("outcome",),
        )
        self.events = counter(
            "pilotlight_gateway_logger_events",
            "Events of models' loggers, by what became of them.",
            ("outcome",),
        )
        self._prompt_tokens = [  # named as vLLM's
            counter("pilotlight_gateway_prefix_cache_queries", "Tokens of prompts.", ("model",)),
            counter("pilotlight_gateway_prefix_cache_hits", "Of these, what pods had.", ("model",)),
        ]
        labels.on_gone.append(self._drop_prompts)
        self.disconnects = counter(
            "pilotlight_gateway_client_disconnects", "Clients that left before the response."
        )
        self.waiting = gauge("pilotlight_gateway_waiting_requests", "Requests in the queue.")
        self.reserved = gauge("pilotlight_gateway_reservations", "Reservations held now.")
        self.in_flight = gauge(
            "pilotlight_gateway_requests_in_flight",
            "Requests in the queue or with a reservation; the number of gateways may follow it.",
        )
        self.registry_age = gauge(
            "pilotlight_gateway_registry_age_seconds", "Age of the local cluster state."
        )
        self.registry_repairs = gauge(
            "pilotlight_gateway_registry_repairs", "Snapshots taken because updates were missed."
        )

    def count_prompt(self, key: str, *tokens: int) -> None:
        model = self.labels.label(str(name_of_key(key)))
        for each, count in zip(self._prompt_tokens, tokens, strict=True):
            each.labels(model).inc(count)

    def _drop_prompts(self, gone: AbstractSet[str]) -> None:
        for each, model in product(self._prompt_tokens, gone):
            each.remove(model)

    def end(self, request: RecentRequest) -> None:
        self._ended.append(request)
        if len(self._ended) >= _FOLDED:
            self.fold()

    def fold(self) -> None:
        """Count the requests that have ended since the last call; threads that read may call it."""
        with self._lock:
            ended = [self._ended.popleft() for _ in range(len(self._ended))]
            for outcome, count in Counts(map(_OUTCOME, ended)).items():
                self.outcomes.add(outcome, count)
            served = [each for each in ended if each.timings is not None]
            if served:
                self._fold_times(served)

    def _fold_times(self, served: Sequence[RecentRequest]) -> None:
        times_s = np.array([each.timings for each in served], np.float64).T / 1000
        queue_s, pod_s, *reported_s = times_s
        stages_s = [queue_s, *reported_s, np.maximum(pod_s - sum(reported_s), 0.0)]
        for stage, seconds in zip(STAGES, stages_s, strict=True):
            observe([self.stages.labels(stage)], np.zeros(len(served), np.intp), seconds)
        policies, of_policies = _owners([each.policy for each in served], self.durations.labels)
        observe(policies, of_policies, queue_s + pod_s)
        models, of_models = _owners([each.model for each in served], self.models.of)
        observe(models, of_models, queue_s + pod_s)
        for number, seconds in enumerate(stages_s):
            sums_ms = np.bincount(of_models, seconds * 1000, len(models)).tolist()
            for series, stage_ms in zip(models, sums_ms, strict=True):
                series.stages_ms[number] += stage_ms
        known = [at for at, each in enumerate(served) if each.expected_s is not None]
        if known:
            expected_s = np.array([served[at].expected_s for at in known], np.float64)
            names = [served[at].policy for at in known]
            observe(*_owners(names, self.predicted.labels), expected_s)
            errors_s = np.abs(expected_s - pod_s[known])
            observe(*_owners(names, self.prediction_errors.labels), errors_s)


def _owners(
    names: Sequence[str], series_of: Callable[[str], HistogramSeries]
) -> tuple[list[HistogramSeries], NDArray[np.intp]]:
    """The series of the names, and for each name the index of its series."""
    numbers: dict[str, int] = {}
    owners = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.intp)
    return [series_of(name) for name in numbers], owners


class RequestCounts(Collector):
    """Requests that ended by model, policy, reason, tier and status.

    The tier is that of the load that the request waited for, or `warm`; empty if no pod responded.
    """

    def __init__(
        self, labels: ModelLabels, registry: CollectorRegistry, fold: Callable[[], None]
    ) -> None:
        """`fold` is called before each reading."""
        self._labels = labels
        self._fold = fold
        self._counts = Counts[tuple[str, str, str, str, int]]()
        labels.on_gone.append(self._drop)
        registry.register(self)

    def _drop(self, gone: AbstractSet[str]) -> None:
        # replaced at once: a scrape may read it in a thread
        self._counts = Counts({key: n for key, n in self._counts.items() if key[0] not in gone})

    def add(self, outcome: tuple[str, str, str, str, int], count: int = 1) -> None:
        model, policy, reason, tier, status = outcome
        self._counts[self._labels.label(model), policy, reason, tier, status] += count

    def totals(self) -> dict[str, tuple[int, int, int]]:
        """By model: requests, cold starts, and responses with a status of 500 or more."""
        self._fold()
        totals: dict[str, tuple[int, int, int]] = {}
        for (model, _, _, tier, status), count in self._counts.items():
            requests, cold, failed = totals.get(model, (0, 0, 0))
            cold += count if tier not in ("", "warm") else 0
            failed += count if status >= 500 else 0
            totals[model] = (requests + count, cold, failed)
        return totals

    def starts(self, of: str) -> Counts[str]:
        """Responses to one model's requests by `warm`, or the tier that they waited from."""
        self._fold()
        found = Counts[str]()
        for (model, _, _, tier, _), count in self._counts.items():
            if model == of and tier:
                found[tier] += count
        return found

    def collect(self) -> Iterable[CounterMetricFamily]:
        self._fold()
        requests, decisions, starts = (Counts[tuple[str, ...]]() for _ in range(3))
        counts = dict(self._counts)  # called in a thread: an iteration could see a change
        for (model, policy, reason, tier, status), count in counts.items():
            requests[model, policy, str(status)] += count
            decisions[model, policy, reason] += count
            if tier:
                starts[model, tier] += count
        for name, documentation, labels, found in (
            ("requests", "Responses to requests.", ("model", "policy", "code"), requests),
            (
                "decisions",
                "Requests by the reason of their last decision.",
                ("model", "policy", "reason"),
                decisions,
            ),
            ("starts", "Responses by the tier they had to wait from.", ("model", "tier"), starts),
        ):
            family = CounterMetricFamily(f"pilotlight_gateway_{name}", documentation, labels=labels)
            for values, count in found.items():
                family.add_metric(values, count)
            yield family
