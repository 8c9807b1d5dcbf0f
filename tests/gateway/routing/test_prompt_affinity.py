"""Requests go where their prompt's beginning was computed, weighed against who waits there."""

import pytest

from gateway.routing.decision import SendTo
from gateway.routing.latency_model import run_at
from gateway.routing.route_request import IncomingRequest, route_request
from gateway.routing.routing_policies import ROUTING_POLICIES
from registry.domain.cluster import ChangeApplier, ClusterState
from registry.domain.estimates import class_bytes
from registry.domain.model import RoutingPolicy
from registry.domain.prompt_prefixes import Prompt
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, declare, request

A, B, C = "pod-a", "pod-b", "pod-c"
AFFINE = [RoutingPolicy.AUTO, RoutingPolicy.COLOCATION, RoutingPolicy.COLOCATION_QUEUEING]
LONG = 3
"""Size class of bodies that take ten times as long as the smallest."""
MEASURED = {
    "infer": 1.0,
    "infer:0": 0.2,
    f"infer:{LONG}": 2.0,
    "preprocess": 0.0,
    "postprocess": 0.0,
    "load:remote": 1000.0,
}


def state(*busy: int, slots: int = 16) -> ClusterState:
    """Warm pods with so many requests each."""
    pods = [
        PodSketch(name, "warm", slots=slots, busy=count)
        for name, count in zip((A, B, C), busy, strict=False)
    ]
    return cluster(*pods, measured=MEASURED)


def chosen(policy: RoutingPolicy, pods: ClusterState, cached: dict[str, float] | None) -> str:
    view = request(size_class=LONG, cached=cached)
    decision = ROUTING_POLICIES[policy](view, pods, NOW_S)
    assert isinstance(decision, SendTo)
    return decision.predict


@pytest.mark.parametrize("policy", AFFINE)
@pytest.mark.parametrize(
    ("busy", "cached", "expected"),
    [
        pytest.param((0, 0, 0), None, A, id="nothing-known"),
        pytest.param((0, 0, 0), {C: 0.5}, C, id="among-idle-pods"),
        pytest.param((0, 2, 0), {B: 0.9}, B, id="worth-waiting-for-two"),
        pytest.param((0, 9, 0), {B: 0.9}, A, id="not-for-nine"),
        pytest.param((0, 1, 0), {B: 0.1}, A, id="little-of-it"),
        pytest.param((3, 2, 0), {A: 0.9, B: 0.9}, B, id="the-less-busy-of-two"),
        pytest.param((0, 0, 0), {B: 1.0, C: 0.3}, B, id="most-of-it"),
        pytest.param((9, 16, 9), {B: 0.5}, A, id="the-pod-is-full"),
    ],
)
def test_weighs_the_prompt_against_those_who_wait(
    policy: RoutingPolicy, busy: tuple[int, ...], cached: dict[str, float] | None, expected: str
) -> None:
    assert chosen(policy, state(*busy), cached) == expected


@pytest.mark.parametrize("policy", AFFINE)
def test_a_pod_with_the_whole_prompt_does_not_get_all_requests(policy: RoutingPolicy) -> None:
    assert chosen(policy, state(15, 0, 0), {A: 1.0}) == B


def test_short_prompts_change_nothing() -> None:
    view = request(size_class=0, cached={C: 1.0})
    decision = ROUTING_POLICIES[RoutingPolicy.COLOCATION](view, state(0, 0, 1), NOW_S)
    assert isinstance(decision, SendTo)
    assert decision.predict == A


def test_a_forecast_is_less_by_what_the_pod_has_of_the_prompt() -> None:
    pods = state(0, 0)
    view = request(size_class=LONG, cached={A: 0.5})
    whole = run_at(pods.pods[B], view, pods, NOW_S)
    half = run_at(pods.pods[A], view, pods, NOW_S)
    assert whole.seconds == pytest.approx(2.0)
    assert half.seconds == pytest.approx(2.0 - 0.5 * 1.8)
    assert half.times.share_s < whole.times.share_s


def test_pods_that_take_longer_need_more_of_it() -> None:
    pods = cluster(
        PodSketch(A, "warm", slots=4, product="slow"),
        PodSketch(B, "warm", slots=4, product="fast"),
        measured={
            f"{measure}|{kind}|1": seconds * factor
            for measure, seconds in MEASURED.items()
            for kind, factor in (("slow", 3.0), ("fast", 1.0))
        },
    )
    assert chosen(RoutingPolicy.AUTO, pods, {A: 0.5}) == B
    assert chosen(RoutingPolicy.AUTO, pods, {A: 0.9}) == A


def test_a_request_is_seen_with_what_pods_have_of_its_prompt() -> None:
    pods = state(0, 0)
    spec = declare(pods)
    ChangeApplier(pods).apply(9, [["at", spec.key, pod, "device|-|0|1"] for pod in (A, B)])
    pods.prefixes.record(spec.key, B, Prompt([1, 2], 32))
    arrival = IncomingRequest("r", spec.name, NOW_S, 0.0, 0, prompt=Prompt([1, 2, 3, 4], 64))
    result = route_request(arrival, pods.models, pods, now_s=NOW_S)
    assert result.view is not None
    assert result.view.cached == {B: 0.5}


def test_a_request_takes_longer_by_the_tokens_it_may_generate() -> None:
    """What a pod has of its prompt makes these no faster."""
    pods = state(0, 0)
    spec = declare(pods)
    ChangeApplier(pods).apply(9, [["at", spec.key, pod, "device|-|0|1"] for pod in (A, B)])
    few, many = (IncomingRequest("r", spec.name, NOW_S, 0.0, 0) for _ in range(2))
    few.take_prompt(Prompt([1], 16, new_tokens=8), 100)
    many.take_prompt(Prompt([1], 16, new_tokens=class_bytes(LONG) // 64 - 2), 100)
    assert (few.size_class, many.size_class) == (0, LONG)
    view = route_request(many, pods.models, pods, now_s=NOW_S).view
    assert view is not None
    measured = request(size_class=LONG, promptless_class=view.promptless_class, cached={A: 1.0})
    assert run_at(pods.pods[A], measured, pods, NOW_S).times.infer_s == pytest.approx(2.0)
