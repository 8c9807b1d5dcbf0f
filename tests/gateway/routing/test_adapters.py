"""Adapters: where the base is, a load is the adapter's own alone; elsewhere it is both."""

from dataclasses import replace

import pytest

from gateway.routing.cold_start import cold_start
from gateway.routing.decision import RequestView, SendTo
from gateway.routing.latency_model import run_at
from gateway.routing.pod_selection import best_cold, cheapest_load
from gateway.routing.routing_policies import ROUTING_POLICIES
from registry.domain.cluster import ChangeApplier, ClusterState
from registry.domain.device_backlog import remaining_load
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy
from registry.domain.records import encode_spec
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster

A, B, C = "pod-a", "pod-b", "pod-c"
BASE = ModelSpec(ModelName("default", "base"), "file:///base")
ADAPTER = ModelSpec(ModelName("default", "adapter"), "file:///adapter", base="base")
BASE_S, ADAPTER_S = 10.0, 0.5
BASE_BYTES, ADAPTER_BYTES = 700, 20


def state(*pods: PodSketch, since_s: float = NOW_S) -> ClusterState:
    """Pods of 1000 bytes, in which sketches say where the base is."""
    found = cluster(*pods, key=BASE.key, measured={"load:remote": BASE_S, "load:host": 2.0})
    changes = [
        ["model", str(each.name), encode_spec(each), False, False] for each in (ADAPTER, BASE)
    ]
    changes += [
        ["samples", ADAPTER.key, measure, [seconds]]
        for measure, seconds in (("load:remote", ADAPTER_S), ("infer", 0.1))
    ]
    for key, size in ((BASE.key, BASE_BYTES), (ADAPTER.key, ADAPTER_BYTES)):
        changes += [["at", key, "gone", f"device|-|0|{size}"], ["at", key, "gone", False]]
    ChangeApplier(found).apply(2, changes)
    return found


def load_s(pods: ClusterState, pod: str, now_s: float = NOW_S) -> float:
    at = pods.pods[pod]
    left = remaining_load(ADAPTER.key, at, at.estimates[ADAPTER.key], pods, now_s)
    assert left is not None
    return left.seconds


def test_a_load_is_the_adapters_own_where_its_base_is() -> None:
    pods = state(PodSketch(A, "warm"), PodSketch(B), PodSketch(C, "host"))
    assert load_s(pods, A) == pytest.approx(ADAPTER_S)
    assert load_s(pods, B) == pytest.approx(BASE_S + ADAPTER_S)
    assert load_s(pods, C) == pytest.approx(2.0 + ADAPTER_S)


def test_a_base_that_is_being_loaded_comes_first() -> None:
    pods = state(PodSketch(A, "loading:remote", loading_since_s=NOW_S - 6.0))
    assert load_s(pods, A) == pytest.approx(4.0 + ADAPTER_S)


def test_an_adapters_own_load_begins_when_its_base_is_there() -> None:
    pods = state(PodSketch(A, "warm", loading_since_s=NOW_S - 0.1))
    since_ms = int((NOW_S - 8.0) * 1000)
    ChangeApplier(pods).apply(3, [["at", ADAPTER.key, A, f"remote|remote|{since_ms}|0"]])
    assert load_s(pods, A) == pytest.approx(ADAPTER_S - 0.1)


@pytest.mark.parametrize(
    "policy", [RoutingPolicy.AUTO, RoutingPolicy.COLOCATION, RoutingPolicy.COLOCATION_QUEUEING]
)
def test_a_cold_adapter_is_loaded_where_its_base_is(policy: RoutingPolicy) -> None:
    pods = state(PodSketch(A), PodSketch(B, "warm", slots=4, busy=1), PodSketch(C, "host"))
    decision = ROUTING_POLICIES[policy](RequestView(ADAPTER.key, NOW_S), pods, NOW_S)
    assert isinstance(decision, SendTo)
    assert decision.predict == B


def test_of_pods_with_the_base_that_with_the_adapters_files() -> None:
    pods = state(PodSketch(A, "warm"), PodSketch(B, "warm"), PodSketch(C))
    ChangeApplier(pods).apply(3, [["at", ADAPTER.key, pod, "disk|-|0|20"] for pod in (B, C)])
    found = best_cold(pods, ADAPTER.key, 0.0)
    assert found is not None
    assert found.name == B


def test_where_no_pod_with_the_base_has_a_slot_both_are_loaded() -> None:
    pods = state(PodSketch(A, "warm", busy=1), PodSketch(B))
    for find in (best_cold, cheapest_load):
        found = find(pods, ADAPTER.key, 0.0)
        assert found is not None
        assert found.name == B


def test_room_is_for_base_and_adapter() -> None:
    pods = state(PodSketch(A, "warm"), PodSketch(B))
    prices = pods.prices_at(NOW_S)
    assert prices.size_bytes(ADAPTER.key) == ADAPTER_BYTES
    assert prices.size_bytes(ADAPTER.key, pods.pods[A]) == ADAPTER_BYTES
    assert prices.size_bytes(ADAPTER.key, pods.pods[B]) == ADAPTER_BYTES + BASE_BYTES
    view = RequestView(ADAPTER.key, NOW_S)
    option = cold_start(view, pods, (), (), NOW_S)
    assert option is not None
    assert option.predict == A
    assert run_at(pods.pods[A], view, pods, NOW_S).seconds == option.forecast.seconds


def test_a_withdrawn_adapter_is_forgotten() -> None:
    pods = state(PodSketch(A, "warm"))
    assert pods.base_of(ADAPTER.key) == BASE.key
    ChangeApplier(pods).apply(3, [["model", str(BASE.name), False, False, False]])
    assert pods.base_of(ADAPTER.key) == ""
    ChangeApplier(pods).apply(4, [["model", str(ADAPTER.name), False, False, False]])
    assert pods.bases == {}


def test_an_adapter_whose_policy_changes_keeps_its_base() -> None:
    pods = state(PodSketch(A, "warm"))
    changed = replace(ADAPTER, policy=ModelPolicy(queue_depth=7))
    assert changed.key == ADAPTER.key
    ChangeApplier(pods).apply(3, [["model", str(ADAPTER.name), encode_spec(changed), False, False]])
    assert pods.base_of(ADAPTER.key) == BASE.key
