"""Histograms of the gateway: by one label, and by model with the times of stages.

They are exposed like those of prometheus_client, and filled by many requests at a time: as arrays,
nine observations per request cost about 3 us instead of 10. Models beyond a bound share the label
`other`, in the order of their first requests. The series of deleted models end once others need
their labels.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

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
    __slots__ = ("bounds", "counts", "exemplars", "stages_ms", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """The latest traced request of each bucket; empty without traces."""
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


Bucket = tuple[str, float] | tuple[str, float, Exemplar]


def buckets_of(
    bounds: Sequence[float], counts: Sequence[int], exemplars: Mapping[int, Exemplar]
) -> list[Bucket]:
    """Cumulative counts by upper bound, for exposition; with exemplars by index where there are."""
    names = [*(str(bound) for bound in bounds), "+Inf"]
    known = dict(exemplars)  # called in a thread: an iteration could see a change
    return [
        (name, float(count), known[n]) if n in known else (name, float(count))
        for n, (name, count) in enumerate(zip(names, accumulate(counts), strict=True))
    ]


class LabelledHistogram(Collector):
    """A histogram with one label."""

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
            buckets = buckets_of(self._bounds, series.counts, series.exemplars)
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
