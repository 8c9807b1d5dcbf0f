"""Pools of several kinds of accelerators, and of placed pods, which serve their own model only."""

from typing import Any

import pytest

from gateway.routing.auto import auto
from gateway.routing.decision import RequestView, SendTo, Wait
from gateway.routing.latency_model import proxy_to, run_at, wait_for
from gateway.routing.routing_policies import ROUTING_POLICIES
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import PodInfo, PodPhase
from registry.domain.pod_index import Residency
from registry.domain.pod_state import LoadMode, PodState
from tests.gateway.cluster_states import KEY, NOW_S, PodSketch, cluster, request

SLOW, FAST = "AMD EPYC", "NVIDIA H200"
BOTH = {
    "infer|AMD EPYC|1": 1.0, "preprocess|AMD EPYC|1": 0.02, "postprocess|AMD EPYC|1": 0.02,
    "load:remote|AMD EPYC|1": 4.0,
    "infer|NVIDIA H200|1": 0.1, "preprocess|NVIDIA H200|1": 0.01, "postprocess|NVIDIA H200|1": 0.01,
    "load:remote|NVIDIA H200|1": 0.5,
}  # fmt: skip
SLOW_ONLY = {measure: seconds for measure, seconds in BOTH.items() if SLOW in measure}

PLACED = ModelSpec(ModelName("default", "placed"), "s3://m/placed")
OTHER = ModelSpec(ModelName("default", "other"), "s3://m/other")


def slow(name: str, at: str = "warm", **facts: Any) -> PodSketch:
    return PodSketch(name, at, product=SLOW, **facts)


def fast(name: str, at: str = "warm", **facts: Any) -> PodSketch:
    return PodSketch(name, at, product=FAST, **facts)


def test_forecasts_are_those_of_the_pods_own_kind() -> None:
    state = cluster(slow("a"), fast("b"), measured=BOTH)
    forecasts = [run_at(state.pods[name], request(), state, NOW_S) for name in "ab"]
    assert [each.seconds for each in forecasts] == pytest.approx([1.04, 0.12])
    assert all(each.is_measured for each in forecasts)


def test_an_unmeasured_kind_takes_those_of_the_other_which_reject_nothing() -> None:
    state = cluster(slow("a"), fast("b"), measured=SLOW_ONLY)
    forecast = run_at(state.pods["b"], request(), state, NOW_S)
    assert forecast.seconds == pytest.approx(1.04)
    assert not forecast.is_measured


@pytest.mark.parametrize(
    ("pods", "chosen"),
    [
        pytest.param((slow("a"), fast("b")), "b", id="both-idle"),
        pytest.param((fast("a"), slow("b")), "a", id="both-idle-in-other-order"),
        pytest.param((slow("a", slots=8), fast("b", slots=8, busy=5)), "b", id="fast-but-busier"),
        pytest.param((slow("a", slots=8), fast("b", slots=64, busy=20)), "a", id="fast-too-busy"),
    ],
)
def test_prefers_the_warm_pod_that_ends_first(pods: tuple[PodSketch, ...], chosen: str) -> None:
    decision = auto(request(), cluster(*pods, measured=BOTH), NOW_S)
    assert isinstance(decision, SendTo)
    assert (decision.predict, decision.mode) == (chosen, LoadMode.WARM)


def test_loads_at_the_faster_kind_rather_than_use_a_slow_warm_pod() -> None:
    decision = auto(request(), cluster(slow("a"), fast("b", "nothing"), measured=BOTH), NOW_S)
    assert isinstance(decision, SendTo)
    assert (decision.predict, decision.mode) == ("b", LoadMode.LOAD)


@pytest.mark.parametrize("count", [2, 40], ids=["scanned", "indexed"])
def test_a_cold_start_is_at_the_kind_that_loads_faster(count: int) -> None:
    roomy = [slow(f"slow-{at:02}", "nothing", memory_bytes=9000) for at in range(count)]
    state = cluster(*roomy, fast("z", "nothing"), measured=BOTH)
    decision = auto(request(), state, NOW_S)
    assert isinstance(decision, SendTo)
    assert decision.predict == "z"
    state.pods["z"].set_counts(1, 1)
    decision = auto(request(), state, NOW_S)
    assert isinstance(decision, SendTo)
    assert decision.predict.startswith("slow")


def test_joins_a_load_of_the_faster_kind() -> None:
    state = cluster(slow("a"), fast("b", "loading:remote"), measured=BOTH)
    decision = auto(request(), state, NOW_S)
    assert isinstance(decision, SendTo)
    assert (decision.predict, decision.mode) == ("b", LoadMode.JOIN)


def test_waits_for_the_slots_of_both_kinds() -> None:
    state = cluster(slow("a", busy=1), fast("b", busy=1), measured=BOTH)
    pods = list(state.pods.values())
    forecast = wait_for(pods, request(), state, NOW_S)
    hold_s = 2 / (1 / 1.04 + 1 / 0.12)
    assert forecast.seconds == pytest.approx(0.12 + hold_s)
    assert forecast.is_measured
    decision = auto(request(), state, NOW_S)
    assert isinstance(decision, Wait)


def test_a_proxied_request_infers_at_one_kind_and_is_prepared_at_another() -> None:
    network = {"network|AMD EPYC|1": 0.5, "assets|AMD EPYC|1": 0.25}
    state = cluster(slow("a", "nothing"), fast("b"), measured=BOTH | network)
    forecast = proxy_to(state.pods["b"], state.pods["a"], request(), state, NOW_S)
    assert forecast.seconds == pytest.approx(0.75 + 0.1 + 0.02 + 0.02)
    assert forecast.is_measured


def test_the_kinds_of_a_pool_follow_its_pods() -> None:
    state = cluster(slow("a"), slow("b"), fast("c"), measured=BOTH)
    assert [kind.product for kind in state.pods.kinds] == [SLOW, FAST]
    del state.pods["a"]
    assert len(state.pods.kinds) == 2
    del state.pods["b"]
    assert [kind.product for kind in state.pods.kinds] == [FAST]
    assert state.pods["c"].estimates[KEY].infer.seconds == 0.1


def _cluster(*, general_warm: bool = True) -> ClusterState:
    """A placed pod that holds its model, and a general pod."""
    state = ClusterState()
    for name, placed in (("general", ""), ("placed-0", str(PLACED.name))):
        info = PodInfo(name, f"{name}:1", name, slots=2, memory_bytes=10**9, placed_model=placed)
        state.pods[name] = PodState(info)
    state.residency.put(PLACED.key, "placed-0", Residency(Tier.DEVICE, None, 0.0, 1000))
    if general_warm:
        state.residency.put(PLACED.key, "general", Residency(Tier.DEVICE, None, 0.0, 1000))
    return state


def _request(spec: ModelSpec, draw: float = 0.9) -> RequestView:
    return RequestView(spec.key, 0.0, draw, 1, 3, 0, 0, 0.0, None, 0.0, 0)


def test_auto_takes_the_placed_copy_though_another_pod_is_idle() -> None:
    state = _cluster()
    state.pods["placed-0"].set_counts(1, 1)
    decision = ROUTING_POLICIES[RoutingPolicy.AUTO](_request(PLACED), state, 0.0)
    assert isinstance(decision, SendTo)
    assert decision.entry == decision.predict == "placed-0"


def test_auto_never_loads_a_placed_model_elsewhere() -> None:
    state = _cluster(general_warm=False)
    state.pods["placed-0"].set_counts(2, 2)
    for queued in (0, 50):
        request = RequestView(PLACED.key, 0.0, 0.5, 1, 3, 0, queued, 0.0, None, 0.0, queued)
        decision = ROUTING_POLICIES[RoutingPolicy.AUTO](request, state, 0.0)
        predict = decision.predict if isinstance(decision, SendTo) else ""
        assert isinstance(decision, Wait) or predict == "placed-0"


def test_without_a_living_placed_pod_other_pods_serve() -> None:
    state = _cluster()
    state.pods["placed-0"].set_phase(PodPhase.DRAINING)
    decision = ROUTING_POLICIES[RoutingPolicy.AUTO](_request(PLACED), state, 0.0)
    assert isinstance(decision, SendTo)
    assert decision.predict == "general"


@pytest.mark.parametrize("policy", list(RoutingPolicy))
@pytest.mark.parametrize("draw", [0.0, 0.5, 0.99])
def test_no_policy_sends_another_model_to_a_placed_pod(policy: RoutingPolicy, draw: float) -> None:
    state = _cluster()
    state.pods["general"].set_counts(1, 0)
    decision = ROUTING_POLICIES[policy](_request(OTHER, draw), state, 0.0)
    assert isinstance(decision, SendTo)
    assert decision.entry == decision.predict == "general"
    state.pods["general"].set_counts(2, 0)
    assert isinstance(ROUTING_POLICIES[policy](_request(OTHER, draw), state, 0.0), Wait)
