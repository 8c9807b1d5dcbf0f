"""What each peer's routing policy chooses in a small pool, by its published rule."""

from functools import partial

import pytest

from gateway.routing.decision import Decision, Reason, SendTo, Wait
from gateway.routing.routing_policies import RoutingFunction
from registry.domain.cluster import ChangeApplier, ClusterState
from registry.domain.model import Tier
from registry.domain.pod_index import Residency
from research.routing.aibrix import aibrix
from research.routing.knative import knative
from research.routing.llama_swap import llama_swap
from research.routing.llm_d import llm_d
from research.routing.ray_serve import ray_serve
from research.routing.serverless_llm import serverless_llm, start_s
from tests.gateway.cluster_states import KEY, NOW_S, PodSketch, cluster, declare, request

SLOTS = 4


def _pod(name: str, at: str = "nothing", busy: int = 0) -> PodSketch:
    """A pod of four slots and memory for three models."""
    return PodSketch(name, at, slots=SLOTS, busy=busy, memory_bytes=300)


def _sent_to(decision: Decision, state: ClusterState | None = None) -> str:
    """The pod, with the policy's memory of the decision."""
    assert isinstance(decision, SendTo)
    assert decision.entry == decision.predict
    if state is not None and decision.on_sent is not None:
        decision.on_sent(state, NOW_S)
    return decision.entry


def _hold(state: ClusterState, pod: str, *models: str) -> None:
    for name in models:
        state.residency.put(f"default/{name}@0", pod, Residency(Tier.DEVICE, None, NOW_S, 100))


def test_reasons_say_where_the_model_was() -> None:
    state = cluster(_pod("a", "warm"), _pod("b", "loading:disk"), _pod("c"))
    for name, reason in (("a", Reason.WARM), ("b", Reason.WARMING), ("c", Reason.COLD)):
        for other in {"a", "b", "c"} - {name}:
            state.pods[other].set_counts(SLOTS, SLOTS)
        state.pods[name].set_counts(0, 0)
        decision = knative(request(), state, NOW_S)
        assert (_sent_to(decision), decision.reason) == (name, reason)


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        pytest.param(3, ["a", "a", "a", "a"], id="up to three, the first that is free"),
        pytest.param(4, ["a", "b", "d", "a"], id="above, in turn"),
    ],
)
def test_knative_takes_any_free_pod(slots: int, expected: list[str]) -> None:
    state = cluster(
        PodSketch("d", slots=slots),
        PodSketch("b", slots=slots),
        PodSketch("a", slots=slots),
        PodSketch("c", "warm", slots=slots, busy=slots),
    )
    chosen = [_sent_to(knative(request(), state, NOW_S), state) for _ in expected]
    assert chosen == expected


@pytest.mark.parametrize("policy", [knative, ray_serve, llm_d, serverless_llm, aibrix, llama_swap])
def test_requests_wait_where_no_pod_has_a_slot(policy: RoutingFunction) -> None:
    state = cluster(_pod("a", "warm", busy=SLOTS), _pod("b", busy=SLOTS))
    assert isinstance(policy(request(), state, NOW_S), Wait)
    assert isinstance(policy(request(), ClusterState(), NOW_S), Wait)


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        # Of b (2 requests), c (1) and d (3): first by the draw, then by what is left of it.
        pytest.param(0.0, "c", id="b and c"),
        pytest.param(0.3, "b", id="b and d"),
        pytest.param(0.99, "c", id="d and c"),
    ],
)
def test_ray_serve_takes_the_less_busy_of_two_pods_with_the_model(
    draw: float, expected: str
) -> None:
    state = cluster(
        _pod("a"), _pod("b", "warm", 2), _pod("c", "loading:remote", 1), _pod("d", "warm", 3)
    )
    assert _sent_to(ray_serve(request(draw=draw), state, NOW_S)) == expected


def test_ray_serve_falls_back_to_the_fewest_models_and_after_the_timeout_to_any() -> None:
    state = cluster(_pod("a", "warm", busy=SLOTS), _pod("b"), _pod("c"))
    _hold(state, "b", "x", "y")
    assert _sent_to(ray_serve(request(draw=0.5), state, NOW_S)) == "c"  # no models
    _hold(state, "c", "x", "y", "z")
    assert isinstance(ray_serve(request(draw=0.5), state, NOW_S), Wait)  # a has the fewest
    assert isinstance(ray_serve(request(draw=0.5), state, NOW_S + 1.49), Wait)
    assert _sent_to(ray_serve(request(draw=0.5), state, NOW_S + 1.51)) in {"b", "c"}


def test_llm_d_weighs_queues_and_slots_against_the_model() -> None:
    # The model (1.0 for 0.8, times 3) is worth less than half of the slots and the longest queue.
    state = cluster(_pod("a", "warm", busy=2), _pod("b"))
    assert _sent_to(llm_d(request(), state, NOW_S)) == "b"
    # Where a load would need an eviction, it is worth more: 0 + 1.5 + 3 for 2 + 2 + 0.
    state = cluster(_pod("a", "warm", busy=1), _pod("b"))
    _hold(state, "b", "x", "y", "z")
    assert _sent_to(llm_d(request(), state, NOW_S)) == "a"
    # A load in progress scores 0.6 where another one would need an eviction.
    state = cluster(_pod("a"), _pod("b", "loading:disk"))
    _hold(state, "a", "x", "y", "z")
    _hold(state, "b", "x", "y")
    assert _sent_to(llm_d(request(draw=0.0), state, NOW_S)) == "b"


def test_llm_d_waits_at_the_best_pod_if_that_is_full() -> None:
    full = PodSketch("a", "warm", slots=1, busy=1, ongoing=0)
    state = cluster(full, PodSketch("b", slots=1, memory_bytes=100))
    _hold(state, "b", "x")
    assert isinstance(llm_d(request(), state, NOW_S), Wait)  # 2 + 0 + 3 for 2 + 2 + 0
    state.pods["a"].set_counts(1, 1)
    assert _sent_to(llm_d(request(), state, NOW_S)) == "b"  # 0 + 0 + 3


def test_serverless_llm_runs_in_turn_and_joins_before_it_starts() -> None:
    state = cluster(_pod("a", "warm"), _pod("b", "warm"), _pod("c", "loading:disk"), _pod("d"))
    turns = [_sent_to(serverless_llm(request(sequence=at), state, NOW_S)) for at in range(3)]
    assert turns == ["a", "b", "a"]
    for full in "ab":
        state.pods[full].set_counts(SLOTS, SLOTS)
    assert _sent_to(serverless_llm(request(), state, NOW_S)) == "c"
    state.pods["c"].set_counts(SLOTS, SLOTS)
    assert _sent_to(serverless_llm(request(), state, NOW_S)) == "d"
    _hold(state, "d", "x", "y", "z")
    assert isinstance(serverless_llm(request(), state, NOW_S), Wait)  # no further by eviction


def test_serverless_llm_starts_where_tier_and_queue_take_the_least_time() -> None:
    measured = {"load:remote": 8.0, "load:disk": 2.0}
    state = cluster(_pod("a"), _pod("b", "disk"), measured=measured)
    assert _sent_to(serverless_llm(request(), state, NOW_S)) == "b"
    other = "default/x@0"
    ChangeApplier(state).apply(2, [["samples", other, "load:disk", [9.0]]])
    loading = partial(Residency, Tier.DISK, Tier.DISK, size_bytes=100)
    state.residency.put(other, "b", loading(since_s=NOW_S - 2.0))
    assert start_s(state.pods["a"], KEY, state, NOW_S) == pytest.approx(8.0)
    assert start_s(state.pods["b"], KEY, state, NOW_S) == pytest.approx(7.0 + 2.0)
    assert _sent_to(serverless_llm(request(), state, NOW_S)) == "a"
    assert start_s(state.pods["b"], KEY, state, NOW_S + 60.0) == pytest.approx(2.0)


def test_serverless_llm_evicts_only_for_a_first_instance_without_room() -> None:
    state = cluster(_pod("a"), _pod("b"), measured={"load:remote": 8.0})
    _hold(state, "a", "x", "y", "z")
    _hold(state, "b", "x", "y")
    assert _sent_to(serverless_llm(request(), state, NOW_S)) == "b"
    _hold(state, "b", "z")
    assert _sent_to(serverless_llm(request(), state, NOW_S)) == "a"  # the first by name


def test_aibrix_takes_the_fewest_requests_among_pods_with_the_model() -> None:
    state = cluster(_pod("a", "warm", 2), _pod("b", "loading:disk", 1), _pod("c"))
    assert _sent_to(aibrix(request(draw=0.5), state, NOW_S)) == "b"
    assert _sent_to(aibrix(request(draw=0.9995), state, NOW_S)) == "c"  # one in a thousand
    for full in "ab":
        state.pods[full].set_counts(SLOTS, SLOTS)
    assert isinstance(aibrix(request(draw=0.5), state, NOW_S), Wait)


def test_aibrix_loads_where_there_is_room_and_else_anywhere() -> None:
    state = cluster(_pod("a"), _pod("b", busy=3), _pod("c", busy=2))
    _hold(state, "a", "x", "y", "z")
    assert _sent_to(aibrix(request(draw=0.0), state, NOW_S)) == "c"
    for name in "bc":
        _hold(state, name, "x", "y", "z")
    chosen = [_sent_to(aibrix(request(draw=draw), state, NOW_S)) for draw in (0.1, 0.5, 0.9)]
    assert chosen == ["a", "b", "c"]


def test_llama_swap_deals_models_to_pods_and_waits_for_them() -> None:
    state = cluster(_pod("a"), _pod("b", "warm"))
    keys = [declare(state, name).key for name in ("m0", "m1", "m2")]
    chosen = [_sent_to(llama_swap(request(key=key), state, NOW_S)) for key in keys]
    assert chosen == ["a", "b", "a"]
    state.pods["a"].set_counts(SLOTS, SLOTS)
    assert isinstance(llama_swap(request(key=keys[2]), state, NOW_S), Wait)
    assert _sent_to(llama_swap(request(key=keys[1]), state, NOW_S)) == "b"
