"""Requests with a deadline that are tried although they are expected to miss it: a few."""

from typing import Final

from gateway.dispatch.pending_placement import PendingPlacement
from gateway.routing.decision import Reason, SendTo, Wait
from gateway.routing.route_request import RoutingResult
from registry.domain.model import ModelName
from registry.domain.pod_state import ProbeBudget

_FIRST_PROBE_S: Final = 1.0
"""From a model's first request with a deadline to its first probe."""


class RequestProbes:
    """Requests with a deadline that try what is expected to be late, or was never measured.

    Without them a model whose measurements are of larger requests, or out of date, serves nothing
    and so gets no others. Limited by the time that they take (`registry.domain.pod_state`).
    """

    def __init__(self) -> None:
        self._late = ProbeBudget(_FIRST_PROBE_S)
        self._transfers = ProbeBudget()

    def begin(self, model: ModelName, now_s: float) -> None:
        """Begin the pause before the model's first late probe, with its first request."""
        self._late.begin(str(model), now_s)

    def may_be_late(self, placement: PendingPlacement, now_s: float) -> bool:
        """Whether the request may be tried although it is expected to miss its deadline."""
        return placement.is_probe or self._late.is_due(str(placement.arrival.model), now_s)

    def may_try_transfer(self, model: ModelName, now_s: float) -> bool:
        """Whether a request may be proxied although the model's transfers were never measured.

        One that ends after its deadline measures nothing, and the next would do the same.
        """
        return self._transfers.is_due(str(model), now_s)

    def count(self, placement: PendingPlacement, result: RoutingResult, now_s: float) -> None:
        """Count a probe once, also if it is queued before it is sent."""
        request, decision = placement.arrival, result.decision
        if request.deadline_s is None or not isinstance(decision, SendTo | Wait):
            return
        if result.is_probe and not placement.is_probe:
            placement.is_probe = True
            self._late.spend(str(request.model), now_s, result.cost_s, result.max_pause_s)
        forecast, is_remote = decision.forecast, decision.reason is Reason.WARM_REMOTE
        if is_remote and forecast is not None and not forecast.is_measured:
            self._transfers.spend(str(request.model), now_s, request.deadline_s - now_s)
