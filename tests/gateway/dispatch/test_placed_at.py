"""Requests whose pod a scheduler of workflows, or a plan, has chosen."""

from dataclasses import replace

import pytest

from gateway.dispatch.pending_placement import ANY_POD, decision_at, planned_decision
from gateway.routing.decision import Reason, Reject, SendTo, Wait
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.pod import PodInfo, PodPhase
from registry.domain.pod_index import Residency
from registry.domain.pod_state import LoadMode, PodState

SPEC = ModelSpec(ModelName("default", "m"), "file:///m")
KEY = SPEC.key
WARM = Residency(Tier.DEVICE, None, 0.0, 1)
ROUTED = SendTo("other", "other", LoadMode.WARM, Reason.WARM)


def cluster(residency: Residency | None = None, *, slots: int = 1) -> ClusterState:
    state = ClusterState()
    state.pods["pod"] = PodState(PodInfo("pod", "127.0.0.1:1", "node", slots=slots))
    if residency is not None:
        state.residency.put(KEY, "pod", residency)
    return state


@pytest.mark.parametrize(
    ("residency", "mode", "reason"),
    [
        pytest.param(WARM, LoadMode.WARM, Reason.WARM, id="warm"),
        pytest.param(
            Residency(Tier.DISK, Tier.DISK, 0.0, 1), LoadMode.JOIN, Reason.WARMING, id="loading"
        ),
        pytest.param(None, LoadMode.LOAD, Reason.COLD, id="cold"),
    ],
)
def test_a_pod_gets_what_it_was_chosen_for(
    residency: Residency | None, mode: LoadMode, reason: Reason
) -> None:
    """A step, also without a free slot: it takes a place in the step queue."""
    state = cluster(residency)
    sent = SendTo("pod", "pod", mode, reason)
    assert planned_decision(SPEC, "pod", state) == sent
    for routed in (ROUTED, Wait(Reason.QUEUE_NO_SLOT)):
        assert decision_at("pod", KEY, routed, state) == replace(sent, takes_slot=False)
    state.pods["pod"].set_counts(1, 1)
    assert decision_at("pod", KEY, ROUTED, state) == replace(sent, takes_slot=False)
    assert planned_decision(SPEC, "pod", state) is None
    assert planned_decision(SPEC, "gone", state) is None


def test_a_pod_that_is_gone_leaves_the_gateways_choice() -> None:
    assert decision_at("gone", KEY, ROUTED, cluster()) is ROUTED
    state = cluster()
    state.pods["pod"].set_phase(PodPhase.DRAINING)
    assert decision_at("pod", KEY, ROUTED, state) is ROUTED


def test_a_rejection_stands() -> None:
    rejected = Reject(Reason.LOAD_FAILED, "it cannot be loaded")
    assert decision_at("pod", KEY, rejected, cluster()) is rejected


def test_a_step_for_any_pod_takes_no_slot_where_the_policy_sends_it() -> None:
    load = SendTo("pod", "pod", LoadMode.LOAD, Reason.COLD, max_other_copies=0)
    assert decision_at(ANY_POD, KEY, load, cluster()) == replace(load, takes_slot=False)
    proxied = SendTo("entry", "pod", LoadMode.WARM, Reason.WARM_REMOTE)
    state = cluster(WARM)
    assert decision_at(ANY_POD, KEY, proxied, state) == SendTo(
        "pod", "pod", LoadMode.WARM, Reason.WARM, takes_slot=False
    )


def test_a_step_for_any_pod_waits_for_no_slot() -> None:
    state = cluster(WARM)
    state.pods["pod"].set_counts(1, 2)
    busy = Wait(Reason.QUEUE_WARM_BUSY)
    assert decision_at(ANY_POD, KEY, busy, state) == SendTo(
        "pod", "pod", LoadMode.WARM, Reason.WARM, takes_slot=False
    )
    state.pods["other"] = PodState(PodInfo("other", "127.0.0.1:2", "node", slots=1))
    state.residency.put(KEY, "other", WARM)
    state.pods["other"].set_counts(1, 1)
    chosen = decision_at(ANY_POD, KEY, busy, state)
    assert isinstance(chosen, SendTo)
    assert chosen.predict == "other", "the fewest inferences"


def test_a_step_for_any_pod_waits_for_memory() -> None:
    waiting = Wait(Reason.QUEUE_MEMORY)
    assert decision_at(ANY_POD, KEY, waiting, cluster()) is waiting
