"""Requests, cold starts and failures of the last ten minutes, by model and second."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Final, NamedTuple

from gateway.telemetry.metrics import GatewayMetrics

INTERVAL_S: Final = 1.0
KEPT_SAMPLES: Final = 600
RATE_SAMPLES: Final = 10
"""Seconds that a rate is averaged over."""


class Increment(NamedTuple):
    """What one model, or several, counted between two samples."""

    requests: int = 0
    cold: int = 0
    """Responses that waited for a load."""
    failed: int = 0
    """Responses with a status of 500 or more."""


_NOTHING: Final = Increment()


class Sample(NamedTuple):
    at_s: float
    """Unix time."""
    counts: Mapping[str, Increment]
    """By model; the sums by `NAMESPACE/`, that of all models by the empty text."""


class Level(NamedTuple):
    """Of one model, from a sample on until the next level."""

    at_s: float
    copies: int
    """Pods that have it on their devices."""
    expected_per_s: float
    """Requests per second that the autoscaler expects of it, in the whole pool: the mean."""
    median_per_s: float = 0.0
    """Half of the next minutes have fewer, by the same forecast."""
    high_per_s: float = 0.0
    """99 % of the next minutes have fewer."""


class Traffic:
    """Samples the counters of the metrics once a second; one task writes it."""

    def __init__(
        self,
        metrics: GatewayMetrics,
        level_of: Callable[[str], tuple[int, float, float, float]],
    ) -> None:
        """`level_of`: the present level of the model with this label, without its time."""
        self._metrics = metrics
        self._level_of = level_of
        self._levels: dict[str, deque[Level]] = {}
        """Where they changed, of the models that have labels of their own."""
        self._samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)
        self._totals: dict[str, tuple[int, int, int]] = {}

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample(time.time())
            await asyncio.sleep(INTERVAL_S)

    def sample(self, now_s: float) -> None:
        totals = self._metrics.outcomes.totals()
        counts_by: dict[str, Increment] = {}
        for model, counts in totals.items():
            before = self._totals.get(model, _NOTHING)
            if counts[0] < before[0]:
                before = _NOTHING  # its series was dropped, and began again
            if counts != before:
                more = [now - then for now, then in zip(counts, before, strict=True)]
                namespace, slash, _ = model.partition("/")
                for key in ("", f"{namespace}/", model) if slash else ("", model):
                    known = counts_by.get(key, _NOTHING)
                    counts_by[key] = Increment(*map(sum, zip(known, more, strict=True)))
        self._totals = totals
        self._samples.append(Sample(now_s, counts_by))
        self._sample_levels(now_s)

    def _sample_levels(self, now_s: float) -> None:
        models = self._metrics.models.series
        self._levels = {model: each for model, each in self._levels.items() if model in models}
        for model in models:
            kept = self._levels.setdefault(model, deque(maxlen=KEPT_SAMPLES))
            level = Level(now_s, *self._level_of(model))
            if not kept or kept[-1][1:] != level[1:]:
                kept.append(level)

    def history(
        self, namespace: str | None, model: str | None = None, *, after_s: float = 0.0
    ) -> list[tuple[float, int, int, int]]:
        """Unix time, requests, cold starts and failures of each sample, oldest first.

        Args:
            namespace: only of its models; None: of all.
            model: only of this one.
            after_s: only of later samples.
        """
        key = model or (f"{namespace}/" if namespace else "")
        later = list(takewhile(lambda each: each.at_s > after_s, reversed(self._samples)))
        return [(each.at_s, *each.counts.get(key, _NOTHING)) for each in reversed(later)]

    def levels(self, model: str, *, after_s: float = 0.0) -> list[Level]:
        """The level at each later sample, from the model's first one on; oldest first."""
        levels = self._levels.get(model, ())
        begun_s = [each.at_s for each in levels]
        return [
            levels[at - 1]._replace(at_s=sample.at_s)
            for sample in self._samples
            if sample.at_s > after_s and (at := bisect_right(begun_s, sample.at_s))
        ]

    def rates(self) -> dict[str, float]:
        """Requests per second by model, averaged over ten seconds."""
        latest = list(self._samples)[-RATE_SAMPLES:]
        counts: dict[str, int] = {}
        for sample in latest:
            for key, increment in sample.counts.items():
                if key and not key.endswith("/"):
                    counts[key] = counts.get(key, 0) + increment.requests
        return {model: count / max(len(latest), 1) for model, count in counts.items()}
