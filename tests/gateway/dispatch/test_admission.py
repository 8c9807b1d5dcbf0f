"""Guards of the placer: slots left to other tenants, and probes, a few of each model."""

import pytest

from gateway.dispatch.admission import RECENT_S, Admission, RecentTenants, RequestProbes
from gateway.dispatch.admission_queue import AdmissionQueue
from gateway.dispatch.pending_placement import PendingPlacement
from gateway.routing.decision import LatencyEstimate, Reason, SendTo, Wait
from gateway.routing.route_request import IncomingRequest, RoutingResult
from registry.domain.cluster import ChangeApplier
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod_state import MAX_PAUSE_S, LoadMode
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, declare
from tests.gateway.virtual_placer import VirtualPlacer

NAME = ModelName("default", "m")
KEY = ModelSpec(NAME, "file:///m").key


def two_tenants(slots: int = 8) -> VirtualPlacer:
    """A pod that is warm for `loud/m` and `quiet/m`."""
    state = cluster(PodSketch("pod-a", slots=slots))
    for namespace in ("loud", "quiet"):
        spec = declare(state, namespace=namespace)
        since_ms = int(NOW_S * 1000)
        entry = ["at", spec.key, "pod-a", f"device|-|{since_ms}|100"]
        ChangeApplier(state).apply(state.version + 1, [entry])
    return VirtualPlacer(state)


def flood(virtual: VirtualPlacer) -> int:
    """Requests of the tenant `loud` that are placed of twenty."""
    before = len(virtual.placed)
    spec = next(
        each.serving for name, each in virtual.state.models.items() if name.namespace == "loud"
    )
    for _ in range(20):
        virtual.place(spec)
    return len(virtual.placed) - before


def test_a_tenant_alone_takes_all_slots() -> None:
    assert flood(two_tenants()) == 8


def test_a_tenant_with_many_requests_leaves_slots_to_one_that_sends_some() -> None:
    virtual = two_tenants()
    quiet = declare(virtual.state, namespace="quiet")
    virtual.place(quiet)
    virtual.end_request("pod-a")
    virtual.placed[0].end_work()
    assert flood(virtual) == 6
    assert not virtual.place(quiet).is_pending
    assert not virtual.place(quiet).is_pending


def test_a_workflows_step_which_takes_no_slot_leaves_none() -> None:
    virtual = two_tenants()
    virtual.place(declare(virtual.state, namespace="quiet"))
    flood(virtual)
    loud = declare(virtual.state, namespace="loud")
    step = PendingPlacement(IncomingRequest("step", loud.name, NOW_S, 0.0, 99), "pod-a")
    assert virtual.placer.place(step) is None
    assert not step.is_pending


def test_slots_are_left_for_some_seconds_only() -> None:
    virtual = two_tenants()
    virtual.place(declare(virtual.state, namespace="quiet"))
    virtual.end_request("pod-a")
    virtual.placed[0].end_work()
    virtual.run_for(RECENT_S + 1.0)
    assert flood(virtual) == 8


def test_slots_are_left_for_some_seconds_only_though_the_clock_was_set_back() -> None:
    tenants = RecentTenants()
    tenants.record("quiet", NOW_S)
    tenants.record("loud", NOW_S - 3600.0)
    assert not tenants.has_other("loud", NOW_S - 3590.0)
    tenants.record("quiet", NOW_S - 3580.0)
    assert tenants.has_other("loud", NOW_S - 3580.0 + RECENT_S)


def test_pods_with_few_slots_keep_none_free() -> None:
    virtual = two_tenants(slots=3)
    virtual.place(declare(virtual.state, namespace="quiet"))
    virtual.end_request("pod-a")
    virtual.placed[0].end_work()
    assert flood(virtual) == 3


def test_a_tenant_is_no_other_to_itself() -> None:
    tenants = RecentTenants()
    tenants.record("a", 1.0)
    assert not tenants.has_other("a", 1.0)
    assert tenants.has_other("b", 1.0)
    tenants.record("b", 2.0)
    assert tenants.has_other("a", 2.0)
    assert not tenants.has_other("b", 1.0 + RECENT_S + 0.1)


def placement(deadline_s: float | None = NOW_S + 9.0) -> PendingPlacement:
    return PendingPlacement(IncomingRequest("r", NAME, NOW_S, 0.0, 1, deadline_s=deadline_s))


def proxied(*, is_measured: bool) -> RoutingResult:
    forecast = LatencyEstimate(0.1, is_measured)
    decision = SendTo("a", "b", LoadMode.WARM, Reason.WARM_REMOTE, forecast=forecast)
    return RoutingResult(decision, None, None)


def test_one_request_tries_a_transfer_that_was_never_measured_the_next_ones_do_not() -> None:
    probes, first = RequestProbes(), placement()
    assert probes.may_try_transfer(first.arrival.model, NOW_S)
    probes.count(first, proxied(is_measured=False), NOW_S)
    assert not probes.may_try_transfer(first.arrival.model, NOW_S + MAX_PAUSE_S / 2)
    assert probes.may_try_transfer(first.arrival.model, NOW_S + MAX_PAUSE_S)


def test_measured_transfers_are_not_limited() -> None:
    probes, request = RequestProbes(), placement()
    probes.count(request, proxied(is_measured=True), NOW_S)
    assert probes.may_try_transfer(request.arrival.model, NOW_S)


def test_a_late_probe_pauses_the_next_one() -> None:
    probes, request = RequestProbes(), placement()
    assert not probes.may_be_late(request, NOW_S)
    decision = proxied(is_measured=True).decision
    late = RoutingResult(decision, None, None, is_probe=True, cost_s=9.0)
    probes.count(request, late, NOW_S)
    assert probes.may_be_late(request, NOW_S)  # it stays one while it waits
    assert not probes.may_be_late(placement(), NOW_S + MAX_PAUSE_S - 1)
    assert probes.may_be_late(placement(), NOW_S + MAX_PAUSE_S)


def test_without_a_deadline_every_request_may_try_a_transfer() -> None:
    state = cluster(
        PodSketch("pod-a", "warm", busy=1, ongoing=0),
        PodSketch("pod-b", slots=9),
        key=KEY,
        measured={"infer": 0.3, "preprocess": 0.0, "postprocess": 0.5, "load:remote": 9.0},
    )
    spec, virtual = declare(state), VirtualPlacer(state)
    are_waiting = []
    for deadline_in_s in (5.0, 5.0, None):
        are_waiting.append(virtual.place(spec, deadline_in_s=deadline_in_s).is_pending)
        state.pods["pod-a"].set_counts(1, 0)
    assert are_waiting == [False, True, False]
    assert virtual.decisions[-1].reason is Reason.WARM_REMOTE


def test_models_share_no_credit_and_a_load_takes_it_away() -> None:
    times = {"load:remote": 3.0, "infer": 1.0, "preprocess": 0.0, "postprocess": 0.0}
    state = cluster(PodSketch("pod-a", "warm", busy=1), PodSketch("pod-b"), key=KEY, measured=times)
    declare(state)
    admission: Admission[PendingPlacement] = Admission(
        state, AdmissionQueue(state), lambda *_: None, may_load=True
    )
    assert isinstance(admission.decide(placement(deadline_s=None), NOW_S).decision, Wait)
    assert admission.credit_s(NAME, NOW_S + 10.0) == pytest.approx(1.0)
    assert admission.credit_s(ModelName("default", "other"), NOW_S + 10.0) == 0.0
    state.residency.drop(KEY, "pod-a")
    decision = admission.decide(placement(deadline_s=None), NOW_S + 10.0).decision
    assert isinstance(decision, SendTo)
    assert decision.mode is LoadMode.LOAD
    assert admission.credit_s(NAME, NOW_S + 10.0) == 0.0
    assert not admission.records


def test_the_models_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.dispatch.admission.MAX_MODELS", 2)
    state = cluster(PodSketch("pod-a", slots=0), key=KEY)
    virtual = VirtualPlacer(state)
    specs = [declare(state, f"m-{number}", queue_depth=0) for number in range(4)]
    for spec in specs:
        virtual.place(spec)
    assert list(virtual.placer.admission.records) == [specs[2].name, specs[3].name]
    virtual.placer.notify_change()
    assert not virtual.placer.admission.records


def test_an_explanation_shows_no_transfer_that_the_request_could_not_try() -> None:
    times = {"infer": 0.1, "preprocess": 0.0, "postprocess": 0.0}
    state = cluster(PodSketch("pod-a", "warm", slots=4), key=KEY, measured=times)
    declare(state)
    admission: Admission[PendingPlacement] = Admission(
        state, AdmissionQueue(state), lambda *_: None, may_load=True
    )
    assert admission.decide(placement(), NOW_S).is_plain
    admission._probes.count(placement(), proxied(is_measured=False), NOW_S)
    view = admission.decide(placement(), NOW_S + 0.1).view
    assert view is not None
    assert not view.may_try_transfer
