"""What each routing policy does in the situations it is for: example tables."""

from __future__ import annotations

import pytest

from gateway.routing.decision import Decision, Reason, SendTo, Wait
from gateway.routing.routing_policies import ROUTING_POLICIES
from registry.domain.model import RoutingPolicy
from registry.domain.pod import PodPhase
from registry.domain.reservation import LoadMode
from tests.gateway.cluster_states import KEY, NOW_S, PodSketch, cluster, request

A, B, C = "pod-a", "pod-b", "pod-c"
JOIN, LOAD, WARM = LoadMode.JOIN, LoadMode.LOAD, LoadMode.WARM


def decided(policy: RoutingPolicy, *pods: PodSketch, **fields: object) -> Decision:
    return ROUTING_POLICIES[policy](request(**fields), cluster(*pods), NOW_S)


def test_every_routing_policy_has_a_function() -> None:
    assert set(ROUTING_POLICIES) == set(RoutingPolicy)


COLOCATION_TABLE = [
    pytest.param(
        [PodSketch(A), PodSketch(B, "warm")],
        SendTo(B, B, WARM, Reason.WARM),
        id="the-warm-pod",
    ),
    pytest.param(
        [PodSketch(A, "warm", slots=2, busy=1), PodSketch(B, "warm", slots=2)],
        SendTo(B, B, WARM, Reason.WARM),
        id="the-warm-pod-with-fewer-inferences",
    ),
    pytest.param(
        [PodSketch(B, "warm"), PodSketch(A, "warm")],
        SendTo(A, A, WARM, Reason.WARM),
        id="equal-warm-pods-by-name",
    ),
    pytest.param(
        [PodSketch(A, "warm", busy=1), PodSketch(B)],
        SendTo(B, B, LOAD, Reason.COLD_WARM_BUSY),
        id="at-once-a-cold-pod-while-the-warm-one-is-busy",
    ),
    pytest.param(
        [PodSketch(A, "loading:remote", busy=1), PodSketch(B)],
        SendTo(B, B, LOAD, Reason.COLD),
        id="at-once-a-cold-pod-while-another-is-warming",
    ),
    pytest.param(
        [PodSketch(A, "loading:remote", slots=2, busy=1), PodSketch(B)],
        SendTo(A, A, JOIN, Reason.WARMING),
        id="a-warming-pod-with-a-free-slot",
    ),
    pytest.param(
        [PodSketch(A), PodSketch(B, "host"), PodSketch(C, "disk")],
        SendTo(B, B, LOAD, Reason.COLD),
        id="the-nearest-tier-starts-cold",
    ),
    pytest.param(
        [PodSketch(A, used_bytes=900), PodSketch(B, used_bytes=100)],
        SendTo(B, B, LOAD, Reason.COLD),
        id="the-emptiest-pod-starts-cold",
    ),
    pytest.param(
        [PodSketch(A, "warm", busy=1), PodSketch(B, busy=1)],
        Wait(Reason.QUEUE_NO_SLOT),
        id="waits-when-no-slot-is-free",
    ),
    pytest.param(
        [PodSketch(A, "warm", phase=PodPhase.DRAINING), PodSketch(B)],
        SendTo(B, B, LOAD, Reason.COLD),
        id="a-draining-warm-pod-is-as-good-as-none",
    ),
    pytest.param(
        [PodSketch(A, "warm", is_suspect=True), PodSketch(B)],
        SendTo(B, B, LOAD, Reason.COLD),
        id="an-unreachable-warm-pod-is-as-good-as-none",
    ),
    pytest.param([], Wait(Reason.NO_PODS), id="waits-for-pods"),
]


@pytest.mark.parametrize(("pods", "expected"), COLOCATION_TABLE)
def test_colocation(pods: list[PodSketch], expected: Decision) -> None:
    assert decided(RoutingPolicy.COLOCATION, *pods) == expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param(
            [PodSketch(A), PodSketch(B, "warm")],
            SendTo(B, B, WARM, Reason.WARM),
            id="the-warm-pod",
        ),
        pytest.param(
            [PodSketch(A), PodSketch(B, "warm", busy=1)],
            Wait(Reason.QUEUE_WARM_BUSY),
            id="waits-for-the-warm-pod",
        ),
        pytest.param(
            [PodSketch(A, "loading:remote"), PodSketch(B, "warm", busy=1)],
            Wait(Reason.QUEUE_WARM_BUSY),
            id="waits-for-the-warm-pod-rather-than-a-warming-one",
        ),
        pytest.param(
            [PodSketch(A, "loading:remote", slots=2, busy=1), PodSketch(B)],
            SendTo(A, A, JOIN, Reason.WARMING),
            id="joins-the-load-under-way",
        ),
        pytest.param(
            [PodSketch(A, "loading:remote", busy=1), PodSketch(B)],
            Wait(Reason.QUEUE_WARMING),
            id="waits-for-the-warming-pod",
        ),
        pytest.param(
            [PodSketch(A), PodSketch(B, "disk")],
            SendTo(B, B, LOAD, Reason.COLD, max_other_copies=0),
            id="one-cold-start-where-nothing-is-warm",
        ),
        pytest.param(
            [PodSketch(A, "warm", phase=PodPhase.DRAINING), PodSketch(B)],
            SendTo(B, B, LOAD, Reason.COLD, max_other_copies=0),
            id="does-not-wait-for-a-draining-pod",
        ),
        pytest.param([PodSketch(A, busy=1)], Wait(Reason.QUEUE_NO_SLOT), id="waits-for-a-slot"),
        pytest.param([], Wait(Reason.NO_PODS), id="waits-for-pods"),
    ],
)
def test_colocation_queueing(pods: list[PodSketch], expected: Decision) -> None:
    assert decided(RoutingPolicy.COLOCATION_QUEUEING, *pods) == expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param(
            [PodSketch(A, "warm", busy=1), PodSketch(B)],
            SendTo(B, A, WARM, Reason.WARM_REMOTE, target_ongoing=3),
            id="proxies-from-a-free-pod-to-the-busy-warm-one",
        ),
        pytest.param(
            [PodSketch(A, "warm"), PodSketch(B, busy=1)],
            SendTo(A, A, WARM, Reason.WARM, target_ongoing=3),
            id="no-hop-where-entry-and-predict-pod-are-the-same",
        ),
        pytest.param(
            [PodSketch(A, "loading:disk", busy=1), PodSketch(B)],
            SendTo(B, A, JOIN, Reason.WARMING_REMOTE, target_ongoing=3),
            id="joins-a-load-remotely",
        ),
        pytest.param(
            [PodSketch(A, "loading:disk", slots=2, busy=1), PodSketch(B, busy=1)],
            SendTo(A, A, JOIN, Reason.WARMING, target_ongoing=3),
            id="joins-a-load-at-its-own-pod",
        ),
        pytest.param(
            [PodSketch(A, "warm", busy=1, ongoing=2), PodSketch(B, "warm", busy=1), PodSketch(C)],
            SendTo(C, B, WARM, Reason.WARM_REMOTE, target_ongoing=3),
            id="the-warm-pod-with-fewest-ongoing-predicts",
        ),
        pytest.param(
            [PodSketch(A, "warm", busy=1, ongoing=3), PodSketch(B)],
            SendTo(B, B, LOAD, Reason.COLD_WARM_BUSY, max_other_copies=1, target_ongoing=3),
            id="the-entry-pod-loads-when-all-are-at-target",
        ),
        pytest.param(
            [PodSketch(A, "warm", slots=8, ongoing=3), PodSketch(B, slots=2, busy=1)],
            SendTo(B, B, LOAD, Reason.COLD_WARM_BUSY, max_other_copies=1, target_ongoing=3),
            id="a-pod-that-lacks-the-model-loads-though-the-warm-one-is-less-loaded",
        ),
        pytest.param(
            [PodSketch(A, "warm", slots=8, ongoing=3), PodSketch(B, slots=8, ongoing=3)],
            Wait(Reason.QUEUE_WARM_BUSY),
            id="waits-when-all-pods-are-at-target",
        ),
        pytest.param(
            [PodSketch(A, "loading:disk", slots=8, ongoing=3)],
            Wait(Reason.QUEUE_WARMING),
            id="waits-for-a-load-that-as-many-join-as-may",
        ),
        pytest.param(
            [PodSketch(A, slots=8, ongoing=3)],
            Wait(Reason.QUEUE_TARGET),
            id="waits-when-nothing-is-warm-and-all-pods-are-at-target",
        ),
        pytest.param(
            [PodSketch(A, slots=8, ongoing=3), PodSketch(B, slots=2, busy=1)],
            SendTo(B, B, LOAD, Reason.COLD, max_other_copies=0, target_ongoing=3),
            id="a-pod-at-target-with-other-models-loads-nothing",
        ),
        pytest.param(
            [PodSketch(A), PodSketch(B, slots=2, busy=1)],
            SendTo(A, A, LOAD, Reason.COLD, max_other_copies=0, target_ongoing=3),
            id="the-least-loaded-entry-pod-loads-when-nothing-is-warm",
        ),
        pytest.param(
            [PodSketch(A, "warm", busy=1), PodSketch(B, busy=1)],
            Wait(Reason.QUEUE_NO_SLOT),
            id="waits-without-an-entry-pod",
        ),
        pytest.param([], Wait(Reason.NO_PODS), id="waits-for-pods"),
    ],
)
def test_remote_proxy(pods: list[PodSketch], expected: Decision) -> None:
    assert decided(RoutingPolicy.REMOTE_PROXY, *pods) == expected


def test_remote_proxy_uses_the_target_of_the_model() -> None:
    pods = [PodSketch(A, "warm", busy=1), PodSketch(B)]
    decision = decided(RoutingPolicy.REMOTE_PROXY, *pods, target_ongoing=1)
    assert decision == SendTo(
        B, B, LOAD, Reason.COLD_WARM_BUSY, max_other_copies=1, target_ongoing=1
    )


@pytest.mark.parametrize(
    ("fields", "entry"),
    [
        pytest.param({"draw": 0.0}, A, id="first-third"),
        pytest.param({"draw": 0.34}, B, id="second-third"),
        pytest.param({"draw": 0.999999}, C, id="last-third"),
    ],
)
def test_random_follows_the_draw(fields: dict[str, float], entry: str) -> None:
    pods = [PodSketch(C), PodSketch(A, "warm"), PodSketch(B)]
    expected = SendTo(entry, entry, LOAD, Reason.MODEL_OBLIVIOUS)
    assert decided(RoutingPolicy.RANDOM, *pods, **fields) == expected


def test_round_robin_takes_turns_by_name() -> None:
    pods = [PodSketch(C), PodSketch(A), PodSketch(B)]
    turns = [decided(RoutingPolicy.ROUND_ROBIN, *pods, sequence=turn) for turn in range(4)]
    assert [turn.entry for turn in turns if isinstance(turn, SendTo)] == [A, B, C, A]


def test_least_loaded_compares_shares_of_slots() -> None:
    pods = [PodSketch(A, slots=2, busy=1), PodSketch(B, slots=4, busy=1), PodSketch(C, busy=1)]
    expected = SendTo(B, B, LOAD, Reason.MODEL_OBLIVIOUS)
    assert decided(RoutingPolicy.LEAST_LOADED, *pods) == expected


@pytest.mark.parametrize(
    "policy", [RoutingPolicy.RANDOM, RoutingPolicy.ROUND_ROBIN, RoutingPolicy.LEAST_LOADED]
)
def test_load_balancing_policies_wait_for_a_slot(policy: RoutingPolicy) -> None:
    assert decided(policy, PodSketch(A, "warm", busy=1)) == Wait(Reason.QUEUE_NO_SLOT)


MEASURED = {
    "load:remote": 0.8, "infer": 0.3, "preprocess": 0.0, "postprocess": 0.0, "network": 0.002,
}  # fmt: skip


def auto(*pods: PodSketch, measured: dict[str, float] | None = None) -> Decision:
    state = cluster(*pods, measured=MEASURED if measured is None else measured)
    return ROUTING_POLICIES[RoutingPolicy.AUTO](request(), state, NOW_S)


def test_takes_an_idle_warm_pod_without_forecasting_other_options() -> None:
    decision = auto(PodSketch(A), PodSketch(B, "warm"))
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.reason, decision.options) == (B, Reason.WARM, ())
    assert decision.forecast is not None
    assert decision.forecast.seconds == pytest.approx(0.3)


def test_starts_cold_if_no_pod_is_warm() -> None:
    decision = auto(PodSketch(A), PodSketch(B, "disk"))
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.mode, decision.reason) == (B, LOAD, Reason.COLD)
    assert decision.max_other_copies == 0


def test_another_cold_start_carries_the_number_of_known_copies() -> None:
    slow = {**MEASURED, "infer": 5.0}
    decision = auto(PodSketch(A, "warm", busy=1), PodSketch(B), measured=slow)
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.reason) == (B, Reason.COLD_WARM_BUSY)
    assert decision.max_other_copies == 1


def test_the_decision_lists_every_option() -> None:
    decision = auto(PodSketch(A, "warm", busy=1), PodSketch(B), measured={**MEASURED, "infer": 5.0})
    assert isinstance(decision, SendTo)
    assert [option.name for option in decision.options] == ["queue", "proxy", "cold start"]


def test_joins_a_load_at_a_pod_with_a_free_slot() -> None:
    decision = auto(PodSketch(A, "loading:remote", slots=2, busy=1), PodSketch(B, busy=1))
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
    decision = auto(*pods)
    assert isinstance(decision, Wait)
    assert decision.reason is reason


def test_starts_cold_if_the_queue_stalls() -> None:
    pods = [PodSketch(A, "warm", busy=1), PodSketch(B)]
    state = cluster(*pods, measured={**MEASURED, "network": 5.0})
    policy = ROUTING_POLICIES[RoutingPolicy.AUTO]
    assert isinstance(policy(request(), state, NOW_S), Wait)
    after_a_second = policy(request(stalled_s=1.0), state, NOW_S + 1.0)
    assert isinstance(after_a_second, SendTo)
    assert after_a_second.entry == B


def test_starts_cold_once_earlier_requests_lost_the_time_of_a_load() -> None:
    state = cluster(PodSketch(A, "warm", busy=1), PodSketch(B), measured=MEASURED)
    policy = ROUTING_POLICIES[RoutingPolicy.AUTO]
    first = policy(request(), state, NOW_S)
    assert isinstance(first, SendTo | Wait)
    assert first.loss is not None
    assert first.loss.seconds == pytest.approx(0.3)
    assert first.loss.load_s == pytest.approx(0.8)
    later = policy(request(lost_s=0.6), state, NOW_S)
    assert isinstance(later, SendTo)
    assert (later.entry, later.mode, later.loss) == (B, LOAD, None)
    assert later.forecast is not None
    assert later.forecast.seconds == pytest.approx(0.8 + 0.3)


def test_credit_never_makes_a_request_miss_its_deadline() -> None:
    state = cluster(PodSketch(A, "warm", busy=1), PodSketch(B), measured=MEASURED)
    asked = request(lost_s=100.0, deadline_s=NOW_S + 1.0)
    decision = ROUTING_POLICIES[RoutingPolicy.AUTO](asked, state, NOW_S)
    assert not (isinstance(decision, SendTo) and decision.mode is LOAD)


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([PodSketch(A, "warm"), PodSketch(B)], id="an-idle-copy"),
        pytest.param([PodSketch(A, "warm", busy=1)], id="nowhere-to-load"),
        pytest.param(
            [PodSketch(A, "warm", busy=1), PodSketch(C, "loading:remote", busy=1), PodSketch(B)],
            id="a-copy-on-its-way",
        ),
    ],
)
def test_no_loss_is_counted_that_a_load_could_not_avoid(pods: list[PodSketch]) -> None:
    decision = auto(*pods)
    assert isinstance(decision, SendTo | Wait)
    assert decision.loss is None


def test_a_copy_of_another_model_is_not_warm_for_the_request() -> None:
    state = cluster(PodSketch(A, "warm"), key="default/other@0")
    decision = ROUTING_POLICIES[RoutingPolicy.COLOCATION](request(key=KEY), state, NOW_S)
    assert isinstance(decision, SendTo)
    assert decision.mode is LOAD
