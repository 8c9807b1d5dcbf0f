"""Where `auto` compares no options, its decision is that of the full comparison."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.auto import auto, weigh
from gateway.routing.decision import Decision, Reason, RequestView, SendTo, Wait
from gateway.routing.latency_model import record_placed
from gateway.routing.pod_selection import MAX_COMPARED, run_soonest, soonest_of
from registry.domain.cluster import ClusterState
from registry.domain.device_backlog import is_idle
from registry.domain.model import Tier
from registry.domain.pod_index import Residency
from registry.domain.pod_state import LoadMode
from tests.gateway.cluster_states import KEY, NOW_S, PodSketch, cluster, request

OTHER = "team/other@0"


def random_pool(rng: random.Random, key: str = KEY) -> ClusterState:
    """Pods with the model or without, of one kind or two; another model beside it."""
    warm_share = rng.choice([0.1, 0.5, 1.0])
    products = rng.choice([[""], [""], ["A", "B"]])
    sketches = []
    for index in range(rng.choice([1, 2, 8, 32])):
        at = (
            "warm"
            if rng.random() < warm_share
            else rng.choice(["nothing", "nothing", "disk", "host", "loading:disk"])
        )
        sketches.append(
            PodSketch(
                f"pod-{index:02d}", at, slots=rng.choice([2, 8, 64]), product=rng.choice(products)
            )
        )
    infer_s = rng.choice([0.002, 0.05, 0.4])
    measured = {
        "infer": infer_s,
        "share": infer_s / rng.choice([1, 4]),
        "preprocess": 0.001,
        "postprocess": 0.001,
        "network": 0.002,
        "load:disk": rng.choice([0.05, 0.6]),
        "load:remote": 1.5,
    }
    known = {k: v for k, v in measured.items() if rng.random() < 0.95}
    state = cluster(*sketches, key=key, measured=known)
    for pod in state.pods.values():
        if pod.info.accelerator.product == "B":
            pod.estimates.add(key, "infer", [infer_s / 2])
            pod.estimates.add(key, "load:disk", [0.04])
        pod.estimates.add(OTHER, "infer", [rng.choice([0.01, 0.1])])
        if rng.random() < 0.5:
            held = Residency(Tier.DEVICE, None, NOW_S, rng.choice([100, 900]))
            state.residency.put(OTHER, pod.name, held)
    for _ in range(rng.choice([0, 1, 30])):
        state.arrivals.record(OTHER, NOW_S - rng.random())
    return state


def place(rng: random.Random, state: ClusterState, now_s: float, key: str = KEY) -> None:
    """Let a request of either model run at some pod; it may be late, or have been cancelled."""
    pod = state.pods[rng.choice(list(state.pods))]
    key = rng.choice([key, key, OTHER])
    if not pod.has_free_slot or pod not in state.warm(key):
        return
    deadline_s = now_s + rng.uniform(0.05, 2.0) if rng.random() < 0.3 else None
    sent = SendTo(pod.name, pod.name, LoadMode.WARM, Reason.WARM)
    placed = record_placed(sent, key, deadline_s, state, now_s)
    assert placed is not None
    if rng.random() < 0.2:
        placed.end(is_cancelled=rng.random() < 0.5)
    else:
        pod.add_pending(slots=1, ongoing=1)


def random_request(rng: random.Random, now_s: float) -> RequestView:
    return request(
        arrival_s=now_s - rng.choice([0.0, 0.1]),
        draw=rng.random(),
        ahead=rng.choice([0, 0, 0, 0, 3]),
        queued=rng.choice([0, 0, 5]),
        deadline_s=now_s + rng.uniform(0.01, 2.0) if rng.random() < 0.4 else None,
        lost_s=rng.choice([0.0, 0.0, 0.5, 10.0]),
    )


@dataclass(frozen=True)
class Choice:
    """What others than explanations see of a decision."""

    pods: tuple[str, str]
    mode: LoadMode | None
    reason: Reason
    seconds: float
    lost_s: float


def choice(decision: Decision) -> Choice:
    assert isinstance(decision, SendTo | Wait)
    seconds = decision.forecast.seconds if decision.forecast else 0.0
    lost_s = decision.loss.seconds if decision.loss else 0.0
    if isinstance(decision, Wait):
        return Choice(("", ""), None, decision.reason, seconds, lost_s)
    pods = (decision.entry, decision.predict)
    return Choice(pods, decision.mode, decision.reason, seconds, lost_s)


def random_state(rng: random.Random, key: str = KEY) -> tuple[ClusterState, float]:
    """A pool at work, and the time."""
    state, now_s = random_pool(rng, key), NOW_S
    for _ in range(rng.choice([0, 3, 20, 100])):
        place(rng, state, now_s, key)
        now_s += rng.expovariate(1000.0)
    return state, now_s


@given(st.integers(0, 1 << 32))
def test_the_soonest_of_the_pods_kept_in_order_is_the_soonest_of_all(seed: int) -> None:
    rng = random.Random(seed)
    state, now_s = random_state(rng)
    for _ in range(4):
        asked = random_request(rng, now_s)
        if len(state.pods.kinds) > 1:
            return
        free = state.free_warm(KEY).first(MAX_COMPARED)
        in_order = free and soonest_of(free, KEY, asked.size_class, asked.deadline_s, state, now_s)
        of_all = run_soonest(state.warm(KEY), asked, state, now_s)
        assert bool(in_order) == bool(of_all)
        if in_order and of_all:  # sums of the same times in another order
            assert in_order.pod is of_all.pod
            assert in_order.seconds == pytest.approx(of_all.seconds, abs=1e-9)
            assert in_order.delays_s == pytest.approx(of_all.delays_s, abs=1e-9)
        for _ in range(rng.choice([1, 5, 40])):
            place(rng, state, now_s)


@given(st.integers(0, 1 << 32))
def test_auto_decides_as_the_comparison_of_all_options(seed: int) -> None:
    rng = random.Random(seed)
    state, now_s = random_state(rng)
    for _ in range(4):
        asked = random_request(rng, now_s)
        decision, compared = auto(asked, state, now_s), weigh(asked, state, now_s)
        assert isinstance(decision, SendTo | Wait)
        is_undecided = isinstance(decision, SendTo) and is_idle(state.pods[decision.predict])
        if not is_undecided or decision.options:
            assert choice(decision) == choice(compared)
            every = choice(weigh(asked, state, now_s, has_hopeless=True))
            assert (every.pods, every.mode) == (choice(decision).pods, choice(decision).mode)
        now_s += 0.01
