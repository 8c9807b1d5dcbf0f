"""Pools of several kinds of accelerators: every forecast is by the pod's own kind."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.routing.auto import auto
from gateway.routing.decision import SendTo, Wait
from gateway.routing.latency_model import proxy_to, run_at, wait_for
from registry.domain.reservation import LoadMode
from tests.gateway.cluster_states import KEY, NOW_S, PodSketch, cluster, request

SLOW, FAST = "AMD EPYC", "NVIDIA H200"
BOTH = {
    "infer|AMD EPYC|1": 1.0, "preprocess|AMD EPYC|1": 0.02, "postprocess|AMD EPYC|1": 0.02,
    "load:remote|AMD EPYC|1": 4.0,
    "infer|NVIDIA H200|1": 0.1, "preprocess|NVIDIA H200|1": 0.01, "postprocess|NVIDIA H200|1": 0.01,
    "load:remote|NVIDIA H200|1": 0.5,
}  # fmt: skip
SLOW_ONLY = {measure: seconds for measure, seconds in BOTH.items() if SLOW in measure}


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
