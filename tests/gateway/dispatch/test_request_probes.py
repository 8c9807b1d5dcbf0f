"""Probes: requests with a deadline that try what is late or unknown, a few of each model."""

from __future__ import annotations

from gateway.dispatch.pending_placement import PendingPlacement
from gateway.dispatch.request_probes import RequestProbes
from gateway.routing.decision import LatencyEstimate, Reason, SendTo
from gateway.routing.route_request import IncomingRequest, RoutingResult
from registry.domain.model import ModelName
from registry.domain.probes import MAX_LOAD_PAUSE_S, MAX_PAUSE_S
from registry.domain.reservation import LoadMode

NOW_S = 1_000.0
NAME = ModelName("default", "m")


def placement(deadline_s: float | None = NOW_S + 9.0) -> PendingPlacement:
    return PendingPlacement(IncomingRequest("r", NAME, NOW_S, 0.0, 1, deadline_s=deadline_s))


def proxied(*, is_measured: bool) -> RoutingResult:
    forecast = LatencyEstimate(0.1, is_measured)
    decision = SendTo("a", "b", LoadMode.WARM, Reason.WARM_REMOTE, forecast=forecast)
    return RoutingResult(decision, None, None)


def test_one_request_tries_a_transfer_that_was_never_measured_the_next_ones_do_not() -> None:
    probes, first = RequestProbes(), placement()
    assert probes.may_try_transfer(first.arrival, NOW_S)
    probes.count(first, proxied(is_measured=False), NOW_S)
    assert not probes.may_try_transfer(first.arrival, NOW_S + MAX_PAUSE_S / 2)
    assert probes.may_try_transfer(first.arrival, NOW_S + MAX_PAUSE_S)
    assert probes.may_try_transfer(placement(deadline_s=None).arrival, NOW_S)


def test_measured_transfers_are_not_limited() -> None:
    probes, request = RequestProbes(), placement()
    probes.count(request, proxied(is_measured=True), NOW_S)
    assert probes.may_try_transfer(request.arrival, NOW_S)


def test_a_probe_that_loads_pauses_the_next_one_for_longer() -> None:
    probes, request = RequestProbes(), placement()
    assert not probes.may_be_late(request, NOW_S)
    late = RoutingResult(
        proxied(is_measured=True).decision, None, None,
        is_probe=True, cost_s=9.0, max_pause_s=MAX_LOAD_PAUSE_S,
    )  # fmt: skip
    probes.count(request, late, NOW_S)
    assert probes.may_be_late(request, NOW_S)  # it stays one while it waits
    assert not probes.may_be_late(placement(), NOW_S + MAX_LOAD_PAUSE_S - 1)
    assert probes.may_be_late(placement(), NOW_S + MAX_LOAD_PAUSE_S)


def test_without_a_deadline_nothing_is_late() -> None:
    probes, request = RequestProbes(), placement(deadline_s=None)
    assert not probes.may_be_late(request, NOW_S)
    assert not probes.may_be_late(request, NOW_S + 60.0)
