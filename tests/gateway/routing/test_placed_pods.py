"""Requests of a placed model keep to its placed pods; no other model's come there."""

from __future__ import annotations

import pytest

from gateway.routing.decision import RequestView, SendTo, Wait
from gateway.routing.routing_policies import ROUTING_POLICIES
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import PodInfo, PodPhase
from registry.domain.pod_state import PodState
from registry.domain.residency_index import Residency

PLACED = ModelSpec(ModelName("default", "placed"), "s3://m/placed")
OTHER = ModelSpec(ModelName("default", "other"), "s3://m/other")


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
