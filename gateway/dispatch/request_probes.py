"""Which requests try what is expected to be too late, or what was never measured.

Limited by the time that they take (`registry.domain.probes`). Without I/O; the clock is passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.routing.decision import Reason, SendTo
from registry.domain.probes import ProbeBudget

if TYPE_CHECKING:
    from gateway.dispatch.pending_placement import PendingPlacement
    from gateway.routing.route_request import IncomingRequest, RoutingResult

_FIRST_PROBE_S: Final = 1.0
"""From a model's first request with a deadline to its first probe."""


class RequestProbes:
    """The probes of one gateway, by model."""

    def __init__(self) -> None:
        self._late = ProbeBudget(_FIRST_PROBE_S)
        self._transfers = ProbeBudget()

    def may_be_late(self, placement: PendingPlacement, now_s: float) -> bool:
        """Whether the request may be tried although it is expected to miss its deadline."""
        request = placement.arrival
        if request.deadline_s is None:
            return False
        return placement.is_probe or self._late.is_due(str(request.model), now_s)

    def may_try_transfer(self, request: IncomingRequest, now_s: float) -> bool:
        """Whether it may be proxied although the model's transfers were never measured.

        One that ends after its deadline measures nothing, and the next would do the same.
        """
        return request.deadline_s is None or self._transfers.is_due(str(request.model), now_s)

    def count(self, placement: PendingPlacement, result: RoutingResult, now_s: float) -> None:
        """Count a probe once, also if it is queued before it is sent."""
        request = placement.arrival
        if result.is_probe and not placement.is_probe:
            placement.is_probe = True
            self._late.spend(str(request.model), now_s, result.cost_s, result.max_pause_s)
        if request.deadline_s is not None and _tries_transfer(result):
            self._transfers.spend(str(request.model), now_s, request.deadline_s - now_s)


def _tries_transfer(result: RoutingResult) -> bool:
    decision = result.decision
    if not isinstance(decision, SendTo) or decision.reason is not Reason.WARM_REMOTE:
        return False
    return decision.forecast is not None and not decision.forecast.is_measured
