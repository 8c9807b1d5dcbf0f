"""The latest requests of this gateway with their outcomes, for the console; bounded."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from registry.domain.pod import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.telemetry.stage_timings import StageTimings

MAX_REQUESTS: Final = 4096


class RecentRequest(NamedTuple):
    """A request that ended, or whose response began."""

    id: str
    at_s: float
    """Unix time."""
    model: str
    policy: str
    reason: str
    start: str
    """`warm`, or the tier that it waited for; empty if no pod responded."""
    status: int
    pod: str
    timings: StageTimings | None
    expected_s: float | None
    """Forecast of the routing decision, if it was measured."""

    def stages_ms(self) -> list[tuple[str, float]]:
        """Milliseconds of each stage, in the order in which a request passes them."""
        timings = self.timings
        if timings is None:
            return []
        return [
            (Stage.QUEUE, timings.queue_ms), (Stage.NETWORK, timings.network_ms),
            (Stage.LOAD, timings.load_ms), (Stage.PREPROCESS, timings.preprocess_ms),
            (Stage.INFER, timings.infer_ms), (Stage.POSTPROCESS, timings.postprocess_ms),
        ]  # fmt: skip


class RecentRequests:
    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._requests: deque[RecentRequest] = deque(maxlen=max_requests)
        self.total = 0
        """Requests recorded since the start, also those that were dropped."""

    def add(self, request: RecentRequest) -> None:
        self._requests.append(request)
        self.total += 1

    def newest_first(self) -> Iterator[RecentRequest]:
        return reversed(self._requests)

    def find(self, request_id: str) -> RecentRequest | None:
        """The latest one with this id."""
        return next((each for each in self.newest_first() if each.id == request_id), None)
