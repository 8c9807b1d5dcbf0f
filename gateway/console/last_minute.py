"""The gateway's recent requests: those of the last minute by namespace, and a trace of ten minutes.

The trace is for `pilotlight simulate --trace live`.
"""

from __future__ import annotations

import csv
import io
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from gateway.telemetry.recent_requests import RecentRequest, RecentRequests
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName

_LATE_REASONS: Final = frozenset({"deadline", "queue-timeout"})
"""Refused since they were, or would have been, too late."""
_WINDOW_S: Final = 60.0
_READ_INTERVAL_S: Final = 1.0
_TRACE_S: Final = 600.0


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
        return percentile(self._times_s.get(viewer, ()), part)

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


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """The value below which this part of the ordered ones is; None without any."""
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else None


def replayed(recent: RecentRequests, state: ClusterState, now_s: float) -> list[RecentRequest]:
    """Requests of the last ten minutes to models that exist, oldest arrival first."""
    found = []
    for each in recent.newest_first():
        if each.at_s < now_s - _TRACE_S:
            break
        if ModelName.parse(each.model) in state.models:
            found.append(each)
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
