"""Batches built for the placed pods in turn, of the size that the plan gives each."""

import pytest

from gateway.routing.decision import Reason, RequestView, SendTo, Wait
from gateway.routing.latency_model import record_placed
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.pod import PodInfo
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState
from registry.domain.records import PlacedPod, PlacedReplica, PlacementRecord
from research.routing.batch_round_robin import batch_round_robin

_MODEL = ModelSpec(ModelName("default", "placed"), "s3://m/placed")


def _cluster(sizes: dict[str, int]) -> ClusterState:
    """Pods whose names are not those of their places, as on a cluster."""
    state, pods = ClusterState(), []
    for number, (name, size) in enumerate(sizes.items()):
        place, model = f"placed-{number}", str(_MODEL.name)
        info = PodInfo(
            name, f"{name}:1", name, slots=100, memory_bytes=10**9, placed_model=model, place=place
        )
        state.pods[name] = PodState(info)
        state.residency.put(_MODEL.key, name, Residency(Tier.DEVICE, None, 0.0, 1000))
        pods.append(PlacedPod(place, PlacedReplica(model, f"gpu-{number}", size), 0.0))
    state.placement = PlacementRecord("usher", "", 0.0, pods=tuple(pods))
    return state


def _send(state: ClusterState, now_s: float) -> SendTo:
    request = RequestView(_MODEL.key, now_s, 0.5, 1, 3, 0, 0, 0.0, None, 0.0, 0)
    decision = batch_round_robin(request, state, now_s)
    assert isinstance(decision, SendTo)
    assert decision.reason is Reason.BATCH_TURN
    assert record_placed(decision, _MODEL.key, None, state, now_s) is not None
    return decision


def test_each_pod_in_turn_gets_a_batch_of_its_size() -> None:
    state = _cluster({"pod-x": 2, "pod-y": 3})
    sent = [_send(state, 0.001 * at).predict for at in range(10)]
    assert sent == ["pod-x", "pod-x", "pod-y", "pod-y", "pod-y"] * 2


def test_a_batch_that_is_not_full_is_closed_after_100_ms() -> None:
    state = _cluster({"pod-x": 8, "pod-y": 8})
    assert [_send(state, at).predict for at in (0.0, 0.05, 0.11)] == ["pod-x", "pod-x", "pod-y"]


def test_a_pod_whose_slots_are_taken_is_waited_for() -> None:
    state = _cluster({"pod-x": 2, "pod-y": 2})
    state.pods["pod-x"].set_counts(100, 100)
    request = RequestView(_MODEL.key, 0.0, 0.5, 1, 3, 0, 0, 0.0, None, 0.0, 0)
    assert isinstance(batch_round_robin(request, state, 0.0), Wait)


@pytest.mark.parametrize("queued", [0, 5])
def test_queues_do_not_change_the_turn(queued: int) -> None:
    state = _cluster({"pod-x": 1, "pod-y": 1})
    state.pods["pod-x"].set_counts(queued, queued)
    assert [_send(state, 0.001 * at).predict for at in range(2)] == ["pod-x", "pod-y"]
