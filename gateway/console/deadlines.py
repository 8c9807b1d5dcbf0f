"""Which requests missed their model's deadline, and how many in the last minute."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from registry.domain.model import ModelName

if TYPE_CHECKING:
    from gateway.telemetry.recent_requests import RecentRequest, RecentRequests
    from registry.domain.cluster import ClusterState

_LATE_REASONS: Final = frozenset({"deadline", "queue-timeout"})
"""Refused since they were, or would have been, too late."""
_WINDOW_S: Final = 60.0
_COUNT_INTERVAL_S: Final = 1.0


class MissedDeadlines:
    """Judges by the deadlines that models declare; those of single requests are not kept."""

    def __init__(self, recent: RecentRequests, state: ClusterState) -> None:
        self._recent = recent
        self._state = state
        self._counts: Counter[str | None] = Counter()
        self._counted_s = float("-inf")

    def is_missed(self, request: RecentRequest) -> bool:
        if request.reason in _LATE_REASONS:
            return True
        record = self._state.models.get(ModelName.parse(request.model))
        deadline_s = None if record is None else record.serving.policy.deadline_s
        timings = request.timings
        if deadline_s is None or timings is None:
            return False
        return (timings.queue_ms + timings.pod_ms) / 1000 > deadline_s

    def last_minute(self, viewer: str | None) -> int:
        """Of the viewer's models, None: of all; counted once a second for all viewers."""
        now_s = time.time()
        if now_s - self._counted_s >= _COUNT_INTERVAL_S:
            self._counted_s = now_s
            self._counts = Counter()
            for request in self._recent.newest_first():
                if request.at_s < now_s - _WINDOW_S:
                    break
                if self.is_missed(request):
                    self._counts.update((None, request.model.partition("/")[0]))
        return self._counts[viewer]
