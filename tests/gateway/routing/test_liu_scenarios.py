"""Liu 2025, sections 6.4.1-6.4.3, scaled: `auto` decides like the winner of each scenario."""

import pytest

from gateway.routing.decision import Decision, Reason, SendTo, Wait
from gateway.routing.latency_model import proxy_to, record_placed
from gateway.routing.routing_policies import ROUTING_POLICIES
from registry.domain.model import RoutingPolicy, Tier
from registry.domain.pod_index import Residency
from registry.domain.pod_state import LoadMode
from tests.gateway.cluster_states import KEY, NOW_S, Liu, PodSketch, cluster, request

IDLE = [PodSketch(f"pod-{n}") for n in "bcdefgh"]
SLOW_AROUND = Liu(around_s=1.5, network_s=1.5)
SLOW_NETWORK = Liu(around_s=0.0, network_s=1.5)
FAST_NETWORK = Liu(around_s=1.5, network_s=0.002)


def second_request(policy: RoutingPolicy, times: Liu, first: PodSketch) -> Decision:
    """The decision for the second of two concurrent requests; the first runs at `first`."""
    state = cluster(first, *IDLE, measured=times.measured)
    return ROUTING_POLICIES[policy](request(), state, NOW_S)


CASES = [
    pytest.param(
        SLOW_AROUND,
        PodSketch("pod-a", "loading:remote", busy=1),
        RoutingPolicy.COLOCATION,
        id="6.4.1-colocation-wins",
    ),
    pytest.param(
        SLOW_NETWORK,
        PodSketch("pod-a", "warm", busy=1),
        RoutingPolicy.COLOCATION_QUEUEING,
        id="6.4.2-queueing-wins",
    ),
    pytest.param(
        FAST_NETWORK,
        PodSketch("pod-a", "warm", busy=1),
        RoutingPolicy.REMOTE_PROXY,
        id="6.4.3-remote-proxy-wins",
    ),
]


@pytest.mark.parametrize(("times", "first", "winner"), CASES)
def test_auto_decides_like_the_winning_policy(
    times: Liu, first: PodSketch, winner: RoutingPolicy
) -> None:
    auto = second_request(RoutingPolicy.AUTO, times, first)
    best = second_request(winner, times, first)
    match auto, best:
        case SendTo(), SendTo():
            assert (auto.entry, auto.predict) == (best.entry, best.predict)
        case Wait(), Wait():
            assert auto.reason is best.reason
        case _:
            pytest.fail(f"auto: {auto}, {winner}: {best}")


@pytest.mark.parametrize(
    ("times", "first", "reason"),
    [
        pytest.param(*case.values[:2], reason, id=case.id)
        for case, reason in zip(
            CASES, (Reason.COLD, Reason.QUEUE_WARM_BUSY, Reason.WARM_REMOTE), strict=True
        )
    ],
)
def test_auto_gives_the_reason_of_the_winning_policy(
    times: Liu, first: PodSketch, reason: Reason
) -> None:
    decision = second_request(RoutingPolicy.AUTO, times, first)
    expected = Reason.COLD_WARM_BUSY if reason is Reason.COLD else reason
    assert decision.reason is expected


@pytest.mark.parametrize("times", [SLOW_AROUND, SLOW_NETWORK, FAST_NETWORK])
def test_auto_starts_one_copy_for_the_first_request(times: Liu) -> None:
    state = cluster(PodSketch("pod-a"), *IDLE, measured=times.measured)
    decision = ROUTING_POLICIES[RoutingPolicy.AUTO](request(), state, NOW_S)
    assert isinstance(decision, SendTo)
    assert (decision.reason, decision.max_other_copies) == (Reason.COLD, 0)


def test_requests_that_meet_after_the_network_wait_for_each_other() -> None:
    """6.4.2 with both requests proxied: equation 3 gives 7 s, as the thesis prints it."""
    times = Liu(load_s=3.0, infer_s=1.0, network_s=5.0)
    state = cluster(PodSketch("pod-a", "warm"), *IDLE, measured=times.measured)
    for name in "bc":
        state.residency.put(KEY, f"pod-{name}", Residency(Tier.DISK, None, NOW_S, 1))
    first = SendTo("pod-b", "pod-a", LoadMode.WARM, Reason.WARM_REMOTE)
    record_placed(first, KEY, None, state, NOW_S)
    state.pods["pod-a"].add_pending(ongoing=1)
    second = proxy_to(state.pods["pod-a"], state.pods["pod-c"], request(), state, NOW_S)
    assert second.seconds == pytest.approx(7.0)
    assert second.guessed_s == 0.0
