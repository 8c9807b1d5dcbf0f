"""Invariants of routing policies for random clusters."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.decision import Decision, Reason, Reject, SendTo, Wait
from gateway.routing.routing_policies import ROUTING_POLICIES
from registry.domain.cluster import ClusterState
from registry.domain.model import RoutingPolicy
from registry.domain.pod import PodPhase
from registry.domain.pod_state import LoadMode
from tests.gateway.cluster_states import KEY, NOW_S, PodSketch, cluster, request

RESIDENCIES = ["nothing", "warm", "host", "disk", "loading:remote", "loading:host"]


@st.composite
def pods(draw: st.DrawFn, name: str) -> PodSketch:
    slots = draw(st.integers(1, 3))
    return PodSketch(
        name,
        draw(st.sampled_from(RESIDENCIES)),
        slots=slots,
        busy=draw(st.integers(0, slots)),
        ongoing=draw(st.integers(0, 4)),
        phase=draw(st.sampled_from([PodPhase.READY, PodPhase.READY, PodPhase.DRAINING])),
        is_suspect=draw(st.integers(0, 4)) == 0,
        used_bytes=draw(st.sampled_from([0, 500, 1000])),
        loading_since_s=NOW_S - draw(st.sampled_from([0.0, 0.5, 10.0])),
    )


@st.composite
def clusters(draw: st.DrawFn) -> list[PodSketch]:
    return [draw(pods(f"pod-{n}")) for n in range(draw(st.integers(0, 5)))]


times = st.fixed_dictionaries(
    {},
    optional={
        measure: st.sampled_from([0.001, 0.3, 2.0])
        for measure in ("load:remote", "load:host", "infer", "preprocess", "postprocess", "network")
    },
)
draws = st.floats(0, 1, exclude_max=True)
policies = st.sampled_from(list(RoutingPolicy))
COLOCATIONS = st.sampled_from([RoutingPolicy.COLOCATION, RoutingPolicy.COLOCATION_QUEUEING])


def decide(policy: RoutingPolicy, state: ClusterState, **fields: object) -> Decision:
    return ROUTING_POLICIES[policy](request(**fields), state, NOW_S)


@given(policies, clusters(), times, draws, st.integers(0, 9))
def test_sends_only_to_accepting_pods_within_their_bounds(
    policy: RoutingPolicy,
    sketches: list[PodSketch],
    measured: dict[str, float],
    draw: float,
    sequence: int,
) -> None:
    state = cluster(*sketches, measured=measured)
    decision = decide(policy, state, draw=draw, sequence=sequence)
    assert not isinstance(decision, Reject)
    assert isinstance(decision.reason, Reason)
    if isinstance(decision, SendTo):
        entry, predict = state.pods[decision.entry], state.pods[decision.predict]
        assert entry.is_accepting
        assert predict.is_accepting
        assert entry.slots_busy < entry.slots
        if predict is not entry:
            assert decision.target_ongoing == 3
        if decision.target_ongoing:  # the registry refuses it at a pod at the target
            assert predict.inferring < decision.target_ongoing


@pytest.mark.slow
@given(policies, clusters(), times, draws)
def test_the_load_mode_matches_the_residency_at_the_predict_pod(
    policy: RoutingPolicy, sketches: list[PodSketch], measured: dict[str, float], draw: float
) -> None:
    state = cluster(*sketches, measured=measured)
    decision = decide(policy, state, draw=draw)
    if isinstance(decision, SendTo):
        residency = state.holders(KEY).get(decision.predict)
        if decision.mode is LoadMode.WARM:
            assert residency is not None
            assert residency.is_warm
        if decision.mode is LoadMode.JOIN:
            assert residency is not None
            assert residency.is_warming


@given(COLOCATIONS, clusters(), draws)
def test_colocation_never_starts_cold_while_a_warm_pod_is_free(
    policy: RoutingPolicy, sketches: list[PodSketch], draw: float
) -> None:
    state = cluster(*sketches)
    decision = decide(policy, state, draw=draw)
    free_warm = [
        name
        for name, residency in state.holders(KEY).items()
        if residency.is_warm and state.pods[name].has_free_slot
    ]
    if free_warm:
        assert isinstance(decision, SendTo)
        assert decision.entry in free_warm
        assert decision.mode is LoadMode.WARM


@given(clusters(), draws)
def test_colocation_queueing_never_starts_cold_while_a_pod_is_warm_or_warming(
    sketches: list[PodSketch], draw: float
) -> None:
    state = cluster(*sketches)
    decision = decide(RoutingPolicy.COLOCATION_QUEUEING, state, draw=draw)
    held = [
        name
        for name, residency in state.holders(KEY).items()
        if (residency.is_warm or residency.is_warming) and state.pods[name].is_accepting
    ]
    if held and isinstance(decision, SendTo):
        assert decision.mode is not LoadMode.LOAD


@given(clusters(), times, draws)
def test_auto_never_proxies_to_a_pod_with_a_free_slot(
    pods: list[PodSketch], measured: dict[str, float], draw: float
) -> None:
    state = cluster(*pods, measured=measured)
    decision = decide(RoutingPolicy.AUTO, state, draw=draw)
    if isinstance(decision, SendTo) and decision.mode is LoadMode.WARM:
        is_local = decision.entry == decision.predict
        assert is_local or not state.pods[decision.predict].has_free_slot


@given(policies, clusters(), times, draws)
def test_waits_for_a_slot_only_if_none_is_free(
    policy: RoutingPolicy, sketches: list[PodSketch], measured: dict[str, float], draw: float
) -> None:
    state = cluster(*sketches, measured=measured)
    decision = decide(policy, state, draw=draw)
    if isinstance(decision, Wait) and decision.reason in (Reason.NO_PODS, Reason.QUEUE_NO_SLOT):
        assert not any(pod.has_free_slot for pod in state.pods.values())
        assert (decision.reason is Reason.NO_PODS) == (not state.pods)


@given(policies, clusters(), times, draws, st.randoms(use_true_random=False))
def test_decisions_are_independent_of_the_order_of_pods(
    policy: RoutingPolicy,
    sketches: list[PodSketch],
    measured: dict[str, float],
    draw: float,
    shuffle: random.Random,
) -> None:
    shuffled = list(sketches)
    shuffle.shuffle(shuffled)
    one = decide(policy, cluster(*sketches, measured=measured), draw=draw)
    other = decide(policy, cluster(*shuffled, measured=measured), draw=draw)
    assert one == other


@given(policies, clusters(), st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_decisions(
    policy: RoutingPolicy, sketches: list[PodSketch], seed: int
) -> None:
    def run() -> list[Decision]:
        rng, state = random.Random(seed), cluster(*sketches)
        return [decide(policy, state, draw=rng.random(), sequence=n) for n in range(5)]

    assert run() == run()


@given(
    st.sampled_from(
        [RoutingPolicy.COLOCATION, RoutingPolicy.COLOCATION_QUEUEING, RoutingPolicy.LEAST_LOADED]
    ),
    clusters(),
    st.data(),
)
def test_more_load_never_makes_a_pod_chosen(
    policy: RoutingPolicy, sketches: list[PodSketch], data: st.DataObject
) -> None:
    before = decide(policy, cluster(*sketches))
    if not isinstance(before, SendTo) or len(sketches) < 2:
        return
    others = [n for n, pod in enumerate(sketches) if pod.name != before.entry]
    busier = data.draw(st.sampled_from(others))
    more = list(sketches)
    more[busier] = replace(
        more[busier],
        busy=min(more[busier].slots, more[busier].busy + 1),
        ongoing=(more[busier].ongoing or 0) + 1,
    )
    after = decide(policy, cluster(*more))
    assert isinstance(after, SendTo)
    assert after.entry != more[busier].name


@pytest.mark.parametrize("policy", [RoutingPolicy.RANDOM])
def test_random_chooses_pods_uniformly_by_draw(policy: RoutingPolicy) -> None:
    state = cluster(*(PodSketch(f"pod-{n}", "warm" if n == 0 else "nothing") for n in range(8)))
    count = 8_000
    chosen = Counter(
        decision.entry
        for n in range(count)
        if isinstance(decision := decide(policy, state, draw=(n + 0.5) / count), SendTo)
    )
    assert set(chosen.values()) == {count // 8}


def test_ties_are_broken_by_the_draw() -> None:
    state = cluster(*(PodSketch(f"pod-{n}") for n in range(4)))
    for policy in (RoutingPolicy.COLOCATION, RoutingPolicy.REMOTE_PROXY, RoutingPolicy.AUTO):
        entries = {
            decision.entry
            for draw in (0.1, 0.3, 0.6, 0.9)
            if isinstance(decision := decide(policy, state, draw=draw), SendTo)
        }
        assert entries == {"pod-0", "pod-1", "pod-2", "pod-3"}
