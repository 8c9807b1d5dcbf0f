"""Requests that a scheduler of workflows has placed."""

from __future__ import annotations

from gateway.dispatch.placed_at import decision_at
from gateway.routing.decision import Reason, Reject, SendTo, Wait
from registry.domain.cluster import ClusterState
from registry.domain.model import Tier
from registry.domain.pod import PodInfo, PodPhase
from registry.domain.pod_state import PodState
from registry.domain.reservation import LoadMode
from registry.domain.residency_index import Residency

ROUTED = SendTo("other", "other", LoadMode.WARM, Reason.WARM)


def cluster(residency: Residency | None = None, *, slots: int = 1) -> ClusterState:
    state = ClusterState()
    state.pods["pod"] = PodState(PodInfo("pod", "127.0.0.1:1", "node", slots=slots))
    if residency is not None:
        state.residency.put("key", "pod", residency)
    return state


def test_a_warm_model_is_used() -> None:
    state = cluster(Residency(Tier.DEVICE, None, 0.0, 1))
    assert decision_at("pod", "key", ROUTED, state) == SendTo(
        "pod", "pod", LoadMode.WARM, Reason.WARM
    )


def test_a_load_under_way_is_joined() -> None:
    state = cluster(Residency(Tier.DISK, Tier.DISK, 0.0, 1))
    assert decision_at("pod", "key", ROUTED, state) == SendTo(
        "pod", "pod", LoadMode.JOIN, Reason.WARMING
    )


def test_a_cold_model_is_loaded_there() -> None:
    assert decision_at("pod", "key", ROUTED, cluster()) == SendTo(
        "pod", "pod", LoadMode.LOAD, Reason.COLD
    )


def test_a_busy_pod_is_waited_for() -> None:
    state = cluster()
    state.pods["pod"].set_counts(1, 1)
    assert decision_at("pod", "key", ROUTED, state) == Wait(Reason.QUEUE_NO_SLOT)


def test_a_pod_that_is_gone_leaves_the_gateways_choice() -> None:
    assert decision_at("gone", "key", ROUTED, cluster()) is ROUTED
    state = cluster()
    state.pods["pod"].set_phase(PodPhase.DRAINING)
    assert decision_at("pod", "key", ROUTED, state) is ROUTED


def test_a_rejection_stands() -> None:
    rejected = Reject(Reason.LOAD_FAILED, "it cannot be loaded")
    assert decision_at("pod", "key", rejected, cluster()) is rejected
