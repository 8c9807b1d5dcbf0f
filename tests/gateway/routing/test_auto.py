"""The `auto` policy: its options, its choice, and the losses that it reports."""

from __future__ import annotations

import pytest

from gateway.routing.auto import auto
from gateway.routing.decision import Decision, Reason, SendTo, Wait
from registry.domain.reservation import LoadMode
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, request

A, B, C = "pod-a", "pod-b", "pod-c"
JOIN, LOAD = LoadMode.JOIN, LoadMode.LOAD
MEASURED = {
    "load:remote": 0.8, "infer": 0.3, "preprocess": 0.0, "postprocess": 0.0, "network": 0.002,
}  # fmt: skip
SLOW = {**MEASURED, "infer": 5.0}


def decide(*pods: PodSketch, measured: dict[str, float] = MEASURED) -> Decision:
    return auto(request(), cluster(*pods, measured=measured), NOW_S)


def test_takes_an_idle_warm_pod_without_forecasting_other_options() -> None:
    decision = decide(PodSketch(A), PodSketch(B, "warm"))
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.reason, decision.options) == (B, Reason.WARM, ())
    assert decision.forecast is not None
    assert decision.forecast.seconds == pytest.approx(0.3)


def test_starts_cold_if_no_pod_is_warm() -> None:
    decision = decide(PodSketch(A), PodSketch(B, "disk"))
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.mode, decision.reason) == (B, LOAD, Reason.COLD)
    assert decision.max_other_copies == 0


def test_another_cold_start_carries_the_number_of_known_copies() -> None:
    decision = decide(PodSketch(A, "warm", busy=1), PodSketch(B), measured=SLOW)
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.reason) == (B, Reason.COLD_WARM_BUSY)
    assert decision.max_other_copies == 1


def test_the_decision_lists_every_option() -> None:
    decision = decide(PodSketch(A, "warm", busy=1), PodSketch(B), measured=SLOW)
    assert isinstance(decision, SendTo)
    assert [option.name for option in decision.options] == ["queue", "proxy", "cold start"]


def test_joins_a_load_at_a_pod_with_a_free_slot() -> None:
    decision = decide(PodSketch(A, "loading:remote", slots=2, busy=1), PodSketch(B, busy=1))
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.mode, decision.reason) == (A, JOIN, Reason.WARMING)


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        pytest.param([PodSketch(A, busy=1)], Reason.QUEUE_NO_SLOT, id="no-slot"),
        pytest.param([PodSketch(A, "warm", busy=1)], Reason.QUEUE_WARM_BUSY, id="warm-busy"),
        pytest.param([PodSketch(A, "loading:host", busy=1)], Reason.QUEUE_WARMING, id="warming"),
        pytest.param([], Reason.NO_PODS, id="no-pods"),
    ],
)
def test_waits(pods: list[PodSketch], reason: Reason) -> None:
    decision = decide(*pods)
    assert isinstance(decision, Wait)
    assert decision.reason is reason


def test_starts_cold_if_the_queue_stalls() -> None:
    pods = [PodSketch(A, "warm", busy=1), PodSketch(B)]
    state = cluster(*pods, measured={**MEASURED, "network": 5.0})
    assert isinstance(auto(request(), state, NOW_S), Wait)
    after_a_second = auto(request(stalled_s=1.0), state, NOW_S + 1.0)
    assert isinstance(after_a_second, SendTo)
    assert after_a_second.entry == B


def test_starts_cold_once_earlier_requests_lost_the_time_of_a_load() -> None:
    state = cluster(PodSketch(A, "warm", busy=1), PodSketch(B), measured=MEASURED)
    first = auto(request(), state, NOW_S)
    assert isinstance(first, SendTo | Wait)
    assert first.loss is not None
    assert first.loss.seconds == pytest.approx(0.3)
    assert first.loss.load_s == pytest.approx(0.8)
    later = auto(request(lost_s=0.6), state, NOW_S)
    assert isinstance(later, SendTo)
    assert (later.entry, later.mode, later.loss) == (B, LOAD, None)
    assert later.forecast is not None
    assert later.forecast.seconds == pytest.approx(0.8 + 0.3)


def test_credit_never_makes_a_request_miss_its_deadline() -> None:
    state = cluster(PodSketch(A, "warm", busy=1), PodSketch(B), measured=MEASURED)
    view = request(lost_s=100.0, deadline_s=NOW_S + 1.0)
    decision = auto(view, state, NOW_S)
    assert not (isinstance(decision, SendTo) and decision.mode is LOAD)


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([PodSketch(A, "warm"), PodSketch(B)], id="an-idle-copy"),
        pytest.param([PodSketch(A, "warm", busy=1)], id="nowhere-to-load"),
        pytest.param(
            [PodSketch(A, "warm", busy=1), PodSketch(C, "loading:remote", busy=1), PodSketch(B)],
            id="a-copy-in-progress",
        ),
    ],
)
def test_no_loss_is_counted_that_a_load_could_not_avoid(pods: list[PodSketch]) -> None:
    decision = decide(*pods)
    assert isinstance(decision, SendTo | Wait)
    assert decision.loss is None
