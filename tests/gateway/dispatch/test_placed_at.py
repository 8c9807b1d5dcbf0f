"""Requests that a scheduler of workflows has placed."""

from __future__ import annotations

from dataclasses import replace

from gateway.dispatch.placed_at import ANY_POD, decision_at
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
        "pod", "pod", LoadMode.WARM, Reason.WARM, takes_slot=False
    )


def test_a_load_under_way_is_joined() -> None:
    state = cluster(Residency(Tier.DISK, Tier.DISK, 0.0, 1))
    assert decision_at("pod", "key", ROUTED, state) == SendTo(
        "pod", "pod", LoadMode.JOIN, Reason.WARMING, takes_slot=False
    )


def test_a_cold_model_is_loaded_there() -> None:
    assert decision_at("pod", "key", ROUTED, cluster()) == SendTo(
        "pod", "pod", LoadMode.LOAD, Reason.COLD, takes_slot=False
    )


def test_the_step_queue_of_a_pod_without_a_free_slot_is_used() -> None:
    state = cluster()
    state.pods["pod"].set_counts(1, 1)
    waiting = Wait(Reason.QUEUE_NO_SLOT)
    assert decision_at("pod", "key", waiting, state) == SendTo(
        "pod", "pod", LoadMode.LOAD, Reason.COLD, takes_slot=False
    )


def test_a_pod_that_is_gone_leaves_the_gateways_choice() -> None:
    assert decision_at("gone", "key", ROUTED, cluster()) is ROUTED
    state = cluster()
    state.pods["pod"].set_phase(PodPhase.DRAINING)
    assert decision_at("pod", "key", ROUTED, state) is ROUTED


def test_a_rejection_stands() -> None:
    rejected = Reject(Reason.LOAD_FAILED, "it cannot be loaded")
    assert decision_at("pod", "key", rejected, cluster()) is rejected


def test_a_step_for_any_pod_takes_no_slot_where_the_policy_sends_it() -> None:
    load = SendTo("pod", "pod", LoadMode.LOAD, Reason.COLD, max_other_copies=0)
    assert decision_at(ANY_POD, "key", load, cluster()) == replace(load, takes_slot=False)
    proxied = SendTo("entry", "pod", LoadMode.WARM, Reason.WARM_REMOTE)
    state = cluster(Residency(Tier.DEVICE, None, 0.0, 1))
    assert decision_at(ANY_POD, "key", proxied, state) == SendTo(
        "pod", "pod", LoadMode.WARM, Reason.WARM, takes_slot=False
    )


def test_a_step_for_any_pod_waits_for_no_slot() -> None:
    state = cluster(Residency(Tier.DEVICE, None, 0.0, 1))
    state.pods["pod"].set_counts(1, 2)
    busy = Wait(Reason.QUEUE_WARM_BUSY)
    assert decision_at(ANY_POD, "key", busy, state) == SendTo(
        "pod", "pod", LoadMode.WARM, Reason.WARM, takes_slot=False
    )
    state.pods["other"] = PodState(PodInfo("other", "127.0.0.1:2", "node", slots=1))
    state.residency.put("key", "other", Residency(Tier.DEVICE, None, 0.0, 1))
    state.pods["other"].set_counts(1, 1)
    chosen = decision_at(ANY_POD, "key", busy, state)
    assert isinstance(chosen, SendTo)
    assert chosen.predict == "other", "the fewest inferences"


def test_a_step_for_any_pod_waits_for_memory() -> None:
    waiting = Wait(Reason.QUEUE_MEMORY)
    assert decision_at(ANY_POD, "key", waiting, cluster()) is waiting
