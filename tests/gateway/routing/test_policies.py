"""Example tables of each routing policy; for `auto` see `test_auto`."""

import pytest

from gateway.routing.decision import Decision, Reason, SendTo, Wait
from gateway.routing.routing_policies import ROUTING_POLICIES
from registry.domain.model import RoutingPolicy, Tier
from registry.domain.pod import PodPhase
from registry.domain.pod_index import Residency
from registry.domain.pod_state import LoadMode
from tests.gateway.cluster_states import KEY, NOW_S, PodSketch, cluster, request

A, B, C = "pod-a", "pod-b", "pod-c"
JOIN, LOAD, WARM = LoadMode.JOIN, LoadMode.LOAD, LoadMode.WARM


def decide(policy: RoutingPolicy, *pods: PodSketch, **fields: object) -> Decision:
    return ROUTING_POLICIES[policy](request(**fields), cluster(*pods), NOW_S)


def test_every_routing_policy_has_a_function() -> None:
    assert set(ROUTING_POLICIES) == set(RoutingPolicy)


COLOCATION_TABLE = [
    pytest.param(
        [PodSketch(A), PodSketch(B, "warm")], SendTo(B, B, WARM, Reason.WARM), id="the-warm-pod"
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
        id="a-cold-start-while-the-warm-pod-is-busy",
    ),
    pytest.param(
        [PodSketch(A, "loading:remote", busy=1), PodSketch(B)],
        SendTo(B, B, LOAD, Reason.COLD),
        id="a-cold-start-while-a-full-pod-is-warming",
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
        id="a-draining-warm-pod-is-ignored",
    ),
    pytest.param(
        [PodSketch(A, "warm", is_suspect=True), PodSketch(B)],
        SendTo(B, B, LOAD, Reason.COLD),
        id="a-suspect-warm-pod-is-ignored",
    ),
    pytest.param([], Wait(Reason.NO_PODS), id="waits-for-pods"),
]


@pytest.mark.parametrize(("pods", "expected"), COLOCATION_TABLE)
def test_colocation(pods: list[PodSketch], expected: Decision) -> None:
    assert decide(RoutingPolicy.COLOCATION, *pods) == expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param(
            [PodSketch(A), PodSketch(B, "warm")], SendTo(B, B, WARM, Reason.WARM), id="the-warm-pod"
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
            id="joins-a-load-in-progress",
        ),
        pytest.param(
            [PodSketch(A, "loading:remote", busy=1), PodSketch(B)],
            Wait(Reason.QUEUE_WARMING),
            id="waits-for-the-warming-pod",
        ),
        pytest.param(
            [PodSketch(A), PodSketch(B, "disk")],
            SendTo(B, B, LOAD, Reason.COLD, max_other_copies=0),
            id="one-cold-start-if-no-pod-is-warm",
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
    assert decide(RoutingPolicy.COLOCATION_QUEUEING, *pods) == expected


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
            id="a-pod-without-the-model-loads-though-the-warm-pod-is-less-loaded",
        ),
        pytest.param(
            [PodSketch(A, "warm", slots=8, ongoing=3), PodSketch(B, slots=8, ongoing=3)],
            Wait(Reason.QUEUE_WARM_BUSY),
            id="waits-when-all-pods-are-at-target",
        ),
        pytest.param(
            [PodSketch(A, "loading:disk", slots=8, ongoing=3)],
            Wait(Reason.QUEUE_WARMING),
            id="waits-for-a-load-at-target",
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
    assert decide(RoutingPolicy.REMOTE_PROXY, *pods) == expected


@pytest.mark.parametrize(("held_bytes", "is_loaded"), [(500, True), (900, False)])
def test_remote_proxy_loads_a_further_copy_into_free_room_only(
    held_bytes: int, is_loaded: bool
) -> None:
    state = cluster(PodSketch(A, "warm", busy=1, ongoing=3), PodSketch(B))
    held = "default/held@0"
    state.residency.device_bytes.update({KEY: 500, held: held_bytes})
    state.residency.put(held, B, Residency(Tier.DEVICE, None, NOW_S, held_bytes))
    decision = ROUTING_POLICIES[RoutingPolicy.REMOTE_PROXY](request(), state, NOW_S)
    assert isinstance(decision, SendTo if is_loaded else Wait)


def test_remote_proxy_uses_the_target_of_the_model() -> None:
    pods = [PodSketch(A, "warm", busy=1), PodSketch(B)]
    decision = decide(RoutingPolicy.REMOTE_PROXY, *pods, target_ongoing=1)
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
    assert decide(RoutingPolicy.RANDOM, *pods, **fields) == expected


def test_round_robin_takes_turns_by_name() -> None:
    pods = [PodSketch(C), PodSketch(A), PodSketch(B)]
    turns = [decide(RoutingPolicy.ROUND_ROBIN, *pods, sequence=turn) for turn in range(4)]
    assert [turn.entry for turn in turns if isinstance(turn, SendTo)] == [A, B, C, A]


def test_least_loaded_compares_shares_of_slots() -> None:
    pods = [PodSketch(A, slots=2, busy=1), PodSketch(B, slots=4, busy=1), PodSketch(C, busy=1)]
    expected = SendTo(B, B, LOAD, Reason.MODEL_OBLIVIOUS)
    assert decide(RoutingPolicy.LEAST_LOADED, *pods) == expected


@pytest.mark.parametrize(
    "policy", [RoutingPolicy.RANDOM, RoutingPolicy.ROUND_ROBIN, RoutingPolicy.LEAST_LOADED]
)
def test_load_balancing_policies_wait_for_a_slot(policy: RoutingPolicy) -> None:
    assert decide(policy, PodSketch(A, "warm", busy=1)) == Wait(Reason.QUEUE_NO_SLOT)


def test_a_copy_of_another_model_is_not_warm_for_the_request() -> None:
    state = cluster(PodSketch(A, "warm"), key="default/other@0")
    decision = ROUTING_POLICIES[RoutingPolicy.COLOCATION](request(key=KEY), state, NOW_S)
    assert isinstance(decision, SendTo)
    assert decision.mode is LOAD
