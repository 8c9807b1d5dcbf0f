"""Refusals that hold for the next requests, too, so that a flood of them costs little.

Where a model's queue is full, or too long for a deadline, thousands of requests in a second would
ask the policy the same. Until the cluster or the queue changes, requests that are no better off
than one just refused are refused like it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from gateway.errors import Rejected

if TYPE_CHECKING:
    from gateway.routing.route_request import IncomingRequest, RoutingResult

MAX_AGE_S: Final = 0.02
"""Forecasts change with time alone."""


@dataclass(frozen=True, slots=True)
class Refusal:
    result: RoutingResult
    error: Rejected
    """As it was raised for the first request; raise a `copy`."""
    left_s: float
    """What that request had until its deadline; infinite without one."""
    until_s: float

    def copy(self) -> Rejected:
        error = self.error
        return Rejected(
            error.reason, str(error), retry_after_s=error.retry_after_s, http_status=error.status
        )


class RecentRefusals:
    """The latest refusal of each kind of request. Times are of the registry's clock."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[object, ...], Refusal] = {}

    def keep(
        self, request: IncomingRequest, result: RoutingResult, error: Rejected, now_s: float
    ) -> None:
        self._by_kind[_kind(request)] = Refusal(
            result, error, _left_s(request, now_s), now_s + MAX_AGE_S
        )

    def find(self, request: IncomingRequest, now_s: float) -> Refusal | None:
        """The refusal of a request that had as much time left as this new one, or more."""
        if not self._by_kind:
            return None
        known = self._by_kind.get(_kind(request))
        if known is None or not 0 <= known.until_s - now_s <= MAX_AGE_S:
            return None
        return known if _left_s(request, now_s) <= known.left_s else None

    def clear(self) -> None:
        """Forget them: the cluster has changed, or a queue became shorter."""
        self._by_kind.clear()


def _kind(request: IncomingRequest) -> tuple[object, ...]:
    return request.model, request.policy, request.size_class, request.deadline_s is None


def _left_s(request: IncomingRequest, now_s: float) -> float:
    return inf if request.deadline_s is None else request.deadline_s - now_s
