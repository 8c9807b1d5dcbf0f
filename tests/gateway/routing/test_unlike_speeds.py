"""Pods of one kind that compute at different speeds read its table by their factors."""

import random

import pytest

from gateway.routing.auto import auto, certain_pod, weigh
from gateway.routing.decision import Decision, SendTo, Wait
from gateway.routing.latency_model import wait_for
from gateway.routing.pod_selection import run_soonest
from registry.domain.cluster import ClusterState
from registry.domain.pod import PodSpeed
from registry.domain.pod_state import LoadMode
from tests.gateway.cluster_states import KEY, NOW_S, PodSketch, cluster, request

TIMES = {
    "infer": 0.1, "share": 0.1, "preprocess": 0.001, "postprocess": 0.001, "network": 0.001,
    "load:disk": 0.15, "load:remote": 1.0,
}  # fmt: skip


def pool(*pods: tuple[PodSketch, float]) -> ClusterState:
    """Pods with their slowness."""
    state = cluster(*[pod for pod, _ in pods], measured=TIMES)
    for pod, slowness in pods:
        state.pods[pod.name].set_speed(PodSpeed(slowness))
    return state


def warm(name: str, slots: int = 8, busy: int = 0) -> PodSketch:
    return PodSketch(name, "warm", slots=slots, busy=busy)


def predict(decision: Decision) -> str:
    assert isinstance(decision, SendTo)
    return decision.predict


@pytest.mark.parametrize(
    ("pods", "chosen"),
    [
        pytest.param([(warm("a"), 3.0), (warm("b"), 1.0)], "b", id="both-idle"),
        pytest.param([(warm("a"), 1.0), (warm("b"), 0.5)], "b", id="both-idle-one-fast"),
        pytest.param([(warm("a"), 3.0), (warm("b", busy=1), 1.0)], "b", id="fast-but-busier"),
        pytest.param([(warm("a"), 3.0), (warm("b", busy=4), 1.0)], "a", id="fast-too-busy"),
        pytest.param(
            [(warm("a"), 3.0), (PodSketch("b", "disk", slots=8), 0.5)], "b", id="load-at-a-fast-one"
        ),
        pytest.param(
            [(warm("a"), 1.0), (PodSketch("b", "disk", slots=8), 0.5)], "a", id="load-for-nothing"
        ),
        pytest.param(
            [(PodSketch("a", "disk"), 4.0), (PodSketch("b", "disk"), 1.0)], "b", id="cold"
        ),
    ],
)
def test_the_soonest_pod_is_chosen(pods: list[tuple[PodSketch, float]], chosen: str) -> None:
    assert predict(auto(request(), pool(*pods), NOW_S)) == chosen


def test_a_request_waits_for_a_fast_pod_rather_than_to_run_at_a_slow_one() -> None:
    state = pool((warm("a"), 8.0), (warm("b", slots=1, busy=1), 0.5))
    assert isinstance(auto(request(), state, NOW_S), Wait)


def test_a_wait_takes_the_times_of_each_pod() -> None:
    busy = [(warm("a", slots=1, busy=1), 1.0), (warm("b", slots=1, busy=1), 1.0)]
    as_fast = pool(*busy)
    as_slow = pool(*[(pod, 4.0) for pod, _ in busy])
    mixed = pool(busy[0], (busy[1][0], 4.0))
    seconds = [
        wait_for([*state.pods.values()], request(ahead=5), state, NOW_S).seconds
        for state in (as_fast, mixed, as_slow)
    ]
    assert seconds == sorted(seconds)
    assert seconds[2] == pytest.approx(4 * seconds[0])


@pytest.mark.parametrize(
    ("slowness", "is_certain"),
    [
        pytest.param((1.0, 1.0), True, id="equal"),
        pytest.param((0.5, 0.5), True, id="equally-fast"),
        pytest.param((2.0, 1.0), False, id="unlike"),
        pytest.param((2.0, 2.0), False, id="others-may-be-faster"),
    ],
)
def test_a_pod_is_certain_only_where_none_can_be_faster(
    slowness: tuple[float, float], is_certain: bool
) -> None:
    state = pool((warm("a"), slowness[0]), (warm("b"), slowness[1]))
    assert (certain_pod(KEY, None, None, state, NOW_S) is not None) is is_certain


@pytest.mark.parametrize("seed", range(40))
def test_the_chosen_warm_pod_is_the_soonest_of_all(seed: int) -> None:
    rng = random.Random(seed)
    state = pool(
        *[
            (warm(f"pod-{number}", busy=rng.randrange(4)), rng.choice([0.5, 1.0, 1.0, 2.5]))
            for number in range(6)
        ]
    )
    decision = auto(request(), state, NOW_S)
    soonest = run_soonest([*state.pods.values()], request(), state, NOW_S)
    assert soonest is not None
    assert isinstance(decision, SendTo)
    assert decision.mode is LoadMode.WARM
    assert decision.forecast is not None
    assert decision.forecast.seconds == pytest.approx(soonest.seconds)
    assert predict(weigh(request(), state, NOW_S)) == decision.predict


def test_a_pod_that_is_as_fast_again_shares_the_kinds_table() -> None:
    state = pool((warm("a"), 2.0), (warm("b"), 1.0))
    assert state.pods["a"].estimates is not state.pods["b"].estimates
    state.pods["a"].set_speed(PodSpeed(1.0))
    assert state.pods["a"].estimates is state.pods["b"].estimates
    assert certain_pod(KEY, None, None, state, NOW_S) is not None


def test_a_forgotten_model_is_unknown_at_a_slow_pod_as_well() -> None:
    state = pool((warm("a"), 2.0))
    assert state.pods["a"].estimates[KEY].infer.is_measured
    state.forget(KEY)
    assert not state.pods["a"].estimates[KEY].infer.is_measured
