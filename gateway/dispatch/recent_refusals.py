"""Refusals that hold for the next requests, too, so that a flood of them costs little.

Where a model's queue is full, or too long for a deadline, thousands of requests in a second would
ask the policy the same. For a moment, requests that are no better off than one just refused are
refused like it: until something changes, or where many are queued, until the queue is shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.errors import Rejected
    from gateway.routing.route_request import IncomingRequest, RoutingResult

MAX_AGE_S: Final = 0.02
"""Also without a change: forecasts change with time alone."""
NOTABLE_SHARE: Final = 0.05
"""Of a queue: while less of it has left, a refusal holds whatever else changes. The queue refills
as soon as it no longer holds, long before the pods run out of requests."""


@dataclass(frozen=True, slots=True)
class Refusal:
    result: RoutingResult
    error: Rejected
    """Never raised itself, so that it keeps no traceback: raise copies."""
    left_s: float
    """What that request had until its deadline; infinite without one."""
    until_s: float
    least_queued: int
    """It holds while as many requests of the model are queued; 0: until anything changes."""


class RecentRefusals:
    """The latest refusal of each kind of request. Times are of the registry's clock."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[object, ...], Refusal] = {}

    def keep(
        self, request: IncomingRequest, result: RoutingResult, error: Rejected, *, queued: int,
        now_s: float,
    ) -> None:  # fmt: skip
        """`queued`: requests of its model."""
        notable = int(queued * NOTABLE_SHARE)
        self._by_kind[_kind(request)] = Refusal(
            result, error.copy(), _left_s(request, now_s), now_s + MAX_AGE_S,
            queued - notable if notable else 0,
        )  # fmt: skip

    def find(self, request: IncomingRequest, *, queued: int, now_s: float) -> Refusal | None:
        """The refusal of a request that had as much time left as this new one, or more."""
        if not self._by_kind:
            return None
        known = self._by_kind.get(_kind(request))
        if known is None or queued < known.least_queued:
            return None
        if not 0 <= known.until_s - now_s <= MAX_AGE_S or _left_s(request, now_s) > known.left_s:
            return None
        return known

    def note_change(self, now_s: float) -> None:
        """Forget those that hold until something changes, and old ones."""
        if self._by_kind:
            self._by_kind = {
                kind: known
                for kind, known in self._by_kind.items()
                if known.least_queued and now_s <= known.until_s
            }


def _kind(request: IncomingRequest) -> tuple[object, ...]:
    return request.model, request.policy, request.size_class, request.deadline_s is None


def _left_s(request: IncomingRequest, now_s: float) -> float:
    return inf if request.deadline_s is None else request.deadline_s - now_s
