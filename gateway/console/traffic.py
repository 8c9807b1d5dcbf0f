"""The gateway's requests of the last minutes: as counted, by model and second, and as kept.

Counts are of ten minutes. The kept ones are read for the last minute by namespace, and as a trace
of ten minutes for `pilotlight simulate --trace live`.
"""

import asyncio
import csv
import io
import time
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.recent_requests import RecentRequest, RecentRequests
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName

INTERVAL_S: Final = 1.0
KEPT_SAMPLES: Final = 600
RATE_SAMPLES: Final = 10
"""Seconds that a rate is averaged over."""
_LATE_REASONS: Final = frozenset({"deadline", "queue-timeout"})
"""Refused since they were, or would have been, too late."""
_WINDOW_S: Final = 60.0
_READ_INTERVAL_S: Final = 1.0
_TRACE_S: Final = 600.0


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
        self, metrics: GatewayMetrics, level_of: Callable[[str], tuple[int, float, float, float]]
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


class LastMinute:
    """Reads the requests that the gateway keeps, once a second for all viewers.

    A viewer is a namespace, or None for all of them. Deadlines are those that models declare; those
    of single requests are not kept.
    """

    def __init__(self, recent: RecentRequests, state: ClusterState) -> None:
        self._recent = recent
        self._state = state
        self._missed: Counter[str | None] = Counter()
        self._times_s: dict[str | None, list[float]] = {}
        self._read_s = float("-inf")

    def is_missed(self, request: RecentRequest) -> bool:
        if request.reason in _LATE_REASONS:
            return True
        record = self._state.models.get(ModelName.parse(request.model))
        deadline_s = None if record is None else record.serving.policy.deadline_s
        if deadline_s is None or request.timings is None:
            return False
        return request.took_s > deadline_s

    def missed(self, viewer: str | None) -> int:
        self._read()
        return self._missed[viewer]

    def percentile_s(self, part: float, viewer: str | None) -> float | None:
        """Of the times of responses, from 0 to 1; None without any."""
        self._read()
        ordered = self._times_s.get(viewer)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else None

    def _read(self) -> None:
        now_s = time.time()
        if now_s - self._read_s < _READ_INTERVAL_S:
            return
        self._read_s = now_s
        self._missed, times_s = Counter(), defaultdict(list)
        for request in self._recent.newest_first():
            if request.at_s < now_s - _WINDOW_S:
                break
            viewers = (None, request.model.partition("/")[0])
            if self.is_missed(request):
                self._missed.update(viewers)
            if request.timings is not None:
                for viewer in viewers:
                    times_s[viewer].append(request.took_s)
        self._times_s = {viewer: sorted(each) for viewer, each in times_s.items()}


def replayed(recent: RecentRequests, state: ClusterState, now_s: float) -> list[RecentRequest]:
    """Requests of the last ten minutes to models that exist, oldest arrival first."""
    latest = takewhile(lambda each: each.at_s >= now_s - _TRACE_S, recent.newest_first())
    found = [each for each in latest if ModelName.parse(each.model) in state.models]
    return sorted(found, key=_arrival_s)


def _arrival_s(request: RecentRequest) -> float:
    return request.at_s - request.took_s


def trace_of(requests: Sequence[RecentRequest]) -> bytes:
    """Their arrivals as CSV, from the first one on, which `load.traces` reads."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("at_s", "tenant", "model"))
    begin_s = _arrival_s(requests[0]) if requests else 0.0
    for each in requests:
        name = ModelName.parse(each.model)
        writer.writerow((f"{_arrival_s(each) - begin_s:.6f}", name.namespace, name.name))
    return text.getvalue().encode()
