"""Histograms for the request path: a tenth of the cost of prometheus_client's, the same exposition.

prometheus_client locks and walks the buckets in Python on each of the eight observations a request
makes; one event loop needs neither.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class HistogramSeries:
    """One labelled series of a histogram."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class LatencyHistogram(Collector):
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
        """The series of a label value."""
        series = self._series.get(value)
        if series is None:
            series = self._series[value] = HistogramSeries(self._bounds)
        return series

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=[self._label])
        names = [*(str(bound) for bound in self._bounds), "+Inf"]
        known = dict(self._series)  # called in a thread: an iteration could see a change
        for value, series in known.items():
            buckets = list(zip(names, map(float, accumulate(series.counts)), strict=True))
            family.add_metric([value], buckets, series.total)
        yield family
