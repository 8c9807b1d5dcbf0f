"""Forecasts of a gateway that knows which models its requests at a pod are for."""

import pytest

from gateway.routing.decision import SendTo
from registry.domain.cluster import ChangeApplier, ClusterState
from registry.domain.model import ModelSpec
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, declare
from tests.gateway.virtual_placer import VirtualPlacer

POD = "pod-a"


def two_models(*, slots: int = 16, busy: int = 0) -> tuple[ClusterState, ModelSpec, ModelSpec]:
    """One pod with a model of 0.5 s and one of 10 ms, both warm and measured."""
    state = cluster(PodSketch(POD, slots=slots, busy=busy))
    heavy, light = declare(state, "heavy"), declare(state, "light")
    changes: list[list[object]] = []
    for spec, infer_s in ((heavy, 0.5), (light, 0.01)):
        changes.append(["at", spec.key, POD, "device|-|0|100"])
        for measure, seconds in (("infer", infer_s), ("preprocess", 0.0), ("postprocess", 0.0)):
            changes.append(["samples", spec.key, measure, [seconds]])
    ChangeApplier(state).apply(state.version + 1, changes)
    return state, heavy, light


def forecast_s(virtual: VirtualPlacer, spec: ModelSpec) -> float:
    virtual.place(spec)
    decision = virtual.decisions[-1]
    assert isinstance(decision, SendTo)
    assert decision.forecast is not None
    return decision.forecast.seconds


def test_every_request_in_progress_counts_with_its_own_models_time() -> None:
    state, heavy, light = two_models()
    virtual = VirtualPlacer(state)
    for _ in range(10):
        virtual.place(light)
    assert forecast_s(virtual, heavy) == pytest.approx(0.6)
    assert forecast_s(virtual, light) == pytest.approx(0.61)


def test_a_request_counts_while_its_reservation_is_on_the_way_and_not_after_a_refusal() -> None:
    state, heavy, light = two_models()
    virtual = VirtualPlacer(state)
    virtual.replies.append(None)
    placement = virtual.place(heavy)
    pod = state.pods[POD]
    pod.add_pending(slots=1, ongoing=1)
    assert forecast_s(virtual, light) == pytest.approx(0.51)
    virtual.placer.cancel(placement)
    virtual.placer.on_reply(placement, is_granted=False)
    pod.add_pending(slots=-1, ongoing=-1)
    assert forecast_s(virtual, light) == pytest.approx(0.02)


def test_a_refused_reservation_leaves_no_work_behind() -> None:
    state, heavy, _ = two_models()
    virtual = VirtualPlacer(state)
    virtual.replies.extend([False] * 4)
    virtual.place(heavy)
    assert not state.pods[POD].work.inferences
    assert not state.pods[POD].work.holders


def test_a_slot_is_free_when_the_request_that_holds_it_ends() -> None:
    state, heavy, light = two_models(slots=1)
    virtual = VirtualPlacer(state)
    virtual.place(light)
    virtual.place(heavy, deadline_in_s=0.9)
    assert not virtual.errors
    virtual.run_for(0.01)
    virtual.end_request(POD)
    virtual.run_for(0.001)
    assert len(virtual.placed) == 2


def test_requests_of_another_gateway_count_as_the_mean_of_the_models_there() -> None:
    state, _heavy, light = two_models(busy=2)
    virtual = VirtualPlacer(state)
    assert forecast_s(virtual, light) == pytest.approx(2 * 0.255 + 0.01)


def test_models_at_a_pod_count_by_their_rates() -> None:
    state, _, light = two_models(busy=2)
    for _ in range(100):
        state.arrivals.record(light.key, NOW_S)
    assert forecast_s(VirtualPlacer(state), light) == pytest.approx(0.03, abs=0.002)


def test_requests_of_another_gateway_count_as_the_mean_of_ones_own() -> None:
    state, _, light = two_models()
    virtual = VirtualPlacer(state)
    virtual.place(light).end_work()
    virtual.free_slot(POD)
    state.pods[POD].set_counts(2, 2)
    assert forecast_s(virtual, light) == pytest.approx(0.03)


def test_a_request_is_not_refused_for_work_of_another_gateway() -> None:
    state, heavy, _ = two_models(slots=1, busy=1)
    virtual = VirtualPlacer(state)
    virtual.place(heavy, deadline_in_s=0.7)
    assert not virtual.errors
    virtual.end_request(POD)
    virtual.run_for(0.001)
    assert len(virtual.placed) == 1
