"""Routing of one request by its model's record, its deadline and the policy."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.routing.cold_start import cold_start
from gateway.routing.decision import Reason, Reject, SendTo, Wait
from gateway.routing.latency_model import record_placed
from gateway.routing.route_request import (
    CONTESTED_MARGIN,
    IncomingRequest,
    RoutingResult,
    can_be_served,
    route_request,
)
from registry.domain.cluster import ClusterState
from registry.domain.estimates import MAX_AGE_S, infer_measure
from registry.domain.model import STOPPED, LoadFailure, ModelName, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import PodPhase
from registry.domain.pod_index import Residency
from registry.domain.pod_state import LoadMode
from registry.inference_service.components import machine_needs
from registry.inference_service.predictors import format_needs
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, declare, request

NAME = ModelName("default", "m")
KEY = ModelSpec(NAME, "file:///m").key
CONTAINERS = machine_needs({"transformer": {"containers": [{}]}})
MEASURED = {
    "load:remote": 0.8, "infer": 0.3, "preprocess": 0.0, "postprocess": 0.0, "network": 0.002,
}  # fmt: skip


def routed(
    state: ClusterState, *, queued: int = 0, may_probe: bool = False, **fields: Any
) -> RoutingResult:
    request = IncomingRequest(
        **{"id": "r", "model": NAME, "arrival_s": NOW_S, "draw": 0.0, "sequence": 1, **fields}
    )
    return route_request(
        request, state.models, state, now_s=NOW_S, queued=queued, may_probe=may_probe
    )


def a_cluster(*pods: PodSketch, measured: dict[str, float] | None = None) -> ClusterState:
    return cluster(*pods, key=KEY, measured=measured)


def measured_cluster(*pods: PodSketch, **declared: Any) -> ClusterState:
    """A cluster in which the model is measured, and declared with these fields."""
    state = a_cluster(*pods, measured=MEASURED)
    declare(state, **declared)
    return state


def failure(**fields: Any) -> LoadFailure:
    known = {
        "key": KEY,
        "reason": "ModelLoadFailed",
        "message": "truncated",
        "attempts": 1,
        "retry_at_s": NOW_S + 7.0,
    }
    return LoadFailure(**{**known, **fields})


def test_rejects_a_request_for_a_deleted_model() -> None:
    decision = routed(a_cluster(PodSketch("pod-a"))).decision
    assert isinstance(decision, Reject)
    assert decision.reason is Reason.MODEL_GONE


@pytest.mark.parametrize(
    ("needs", "pods", "reason"),
    [
        pytest.param(CONTAINERS, 1, Reason.NO_SUPPORTING_RUNTIME, id="containers"),
        pytest.param(CONTAINERS, 0, Reason.NO_SUPPORTING_RUNTIME, id="containers-without-pods"),
        pytest.param(format_needs("paddle"), 1, Reason.NO_SUPPORTING_RUNTIME, id="format"),
        pytest.param(format_needs("paddle"), 0, Reason.NO_PODS, id="format-without-pods"),
        pytest.param(STOPPED, 1, Reason.MODEL_STOPPED, id="stopped"),
        pytest.param("", 1, Reason.COLD, id="nothing"),
    ],
)
def test_rejects_what_no_pod_will_ever_serve(needs: str, pods: int, reason: Reason) -> None:
    """Of no pods it is not known yet whether they have a model server."""
    state = a_cluster(*(PodSketch(f"pod-{index}") for index in range(pods)))
    declare(state)
    record = state.models[NAME]
    spec = replace(record.serving, format="paddle", needs=needs)
    state.models[NAME] = replace(record, spec=spec)
    decision = routed(state).decision
    assert decision.reason is reason
    if reason in (Reason.NO_SUPPORTING_RUNTIME, Reason.MODEL_STOPPED):
        assert isinstance(decision, Reject)
        assert decision.retry_after_s is None
        assert f"cannot be served here: {needs}" in decision.message
        assert not can_be_served(state.models[NAME], state)


def test_uses_the_policy_of_the_model() -> None:
    state = a_cluster(PodSketch("pod-a", "warm", busy=1), PodSketch("pod-b"))
    declare(state, routing=RoutingPolicy.COLOCATION_QUEUEING)
    assert routed(state).decision == Wait(Reason.QUEUE_WARM_BUSY)
    assert routed(state).policy == RoutingPolicy.COLOCATION_QUEUEING


def test_the_policy_of_the_request_overrides_that_of_the_model() -> None:
    state = a_cluster(PodSketch("pod-a", "warm", busy=1), PodSketch("pod-b"))
    declare(state, routing=RoutingPolicy.COLOCATION_QUEUEING)
    found = routed(state, policy=RoutingPolicy.COLOCATION)
    assert isinstance(found.decision, SendTo)
    assert found.policy == RoutingPolicy.COLOCATION


def test_the_previous_generation_serves_until_the_new_one_is_warm() -> None:
    state = a_cluster(PodSketch("pod-a", "warm"))
    old = ModelSpec(NAME, "file:///m")
    declare(state, "m", previous=old)
    assert routed(state).spec == old


@pytest.mark.parametrize(
    ("left_s", "is_rejected"),
    [
        pytest.param(0.2, True, id="shorter-than-the-forecast"),
        pytest.param(0.4, False, id="longer-than-the-forecast"),
    ],
)
@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_a_measured_forecast_past_the_deadline_is_rejected(
    policy: RoutingPolicy, left_s: float, is_rejected: bool
) -> None:
    state = measured_cluster(PodSketch("pod-a", "warm"), routing=policy)
    decision = routed(state, deadline_s=NOW_S + left_s).decision
    assert isinstance(decision, Reject) is is_rejected
    if isinstance(decision, Reject):
        assert decision.reason is Reason.DEADLINE
        assert "300 ms" in decision.message


@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_an_unmeasured_forecast_is_never_rejected(policy: RoutingPolicy) -> None:
    state = a_cluster(PodSketch("pod-a", "warm"), PodSketch("pod-b"))
    declare(state, routing=policy)
    assert isinstance(routed(state, deadline_s=NOW_S + 0.001).decision, SendTo)


def test_a_cold_start_is_rejected_only_if_the_load_is_measured() -> None:
    partly = {name: value for name, value in MEASURED.items() if name != "load:remote"}
    for measured, kind in ((MEASURED, Reject), (partly, SendTo)):
        state = a_cluster(PodSketch("pod-a"), measured=measured)
        declare(state, routing=RoutingPolicy.COLOCATION)
        assert isinstance(routed(state, deadline_s=NOW_S + 0.5).decision, kind)


def test_without_permission_to_load_a_cold_request_waits() -> None:
    cold, warm = a_cluster(PodSketch("pod-a")), a_cluster(PodSketch("pod-a", "warm"))
    for state, expected in ((cold, Wait), (warm, SendTo)):
        declare(state, routing=RoutingPolicy.COLOCATION_QUEUEING)
        request = IncomingRequest("r", NAME, NOW_S, 0.0, 1)
        found = route_request(request, state.models, state, now_s=NOW_S, may_load=False)
        assert isinstance(found.decision, expected)


def test_a_due_time_is_no_reason_to_reject() -> None:
    state = measured_cluster(PodSketch("pod-a", "warm"), routing=RoutingPolicy.COLOCATION_QUEUEING)
    assert isinstance(routed(state, due_s=NOW_S - 1.0).decision, SendTo)


def test_rejects_a_request_past_its_deadline() -> None:
    state = a_cluster(PodSketch("pod-a", "warm"))
    declare(state)
    decision = routed(state, deadline_s=NOW_S - 0.001).decision
    assert isinstance(decision, Reject)
    assert decision.reason is Reason.DEADLINE


def test_rejects_a_wait_that_is_forecast_past_the_deadline() -> None:
    state = measured_cluster(PodSketch("pod-a", "warm"))
    first = SendTo("pod-a", "pod-a", LoadMode.WARM, Reason.WARM)
    record_placed(first, KEY, None, state, NOW_S)
    state.pods["pod-a"].add_pending(slots=1, ongoing=1)
    assert isinstance(routed(state, deadline_s=NOW_S + 0.5).decision, Reject)
    assert isinstance(routed(state, deadline_s=NOW_S + 0.7).decision, Wait)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(PodSketch("pod-a", "warm", slots=8, busy=3), id="work-of-another-gateway"),
        pytest.param(
            PodSketch("pod-a", "loading:remote", slots=8, loading_since_s=NOW_S - 5.0),
            id="a-late-load",
        ),
    ],
)
def test_what_is_only_guessed_is_no_reason_to_reject(pod: PodSketch) -> None:
    state = measured_cluster(pod)
    assert isinstance(routed(state, deadline_s=NOW_S + 0.4).decision, SendTo)
    assert isinstance(routed(state, deadline_s=NOW_S + 0.2).decision, Reject)


def test_a_slot_held_for_a_time_never_measured_is_no_reason_to_reject() -> None:
    first = SendTo("pod-a", "pod-a", LoadMode.WARM, Reason.WARM)
    for key, kind in (("default/unmeasured@0", Wait), (KEY, Reject)):
        state = measured_cluster(PodSketch("pod-a", "warm"))
        record_placed(first, key, None, state, NOW_S)
        state.pods["pod-a"].add_pending(slots=1, ongoing=1)
        assert isinstance(routed(state, deadline_s=NOW_S + 0.5).decision, kind)


@pytest.mark.parametrize("policy", [RoutingPolicy.COLOCATION, RoutingPolicy.RANDOM])
@pytest.mark.parametrize(
    ("declared", "request_fields"),
    [
        pytest.param({"failure": failure()}, {}, id="the-last-one"),
        pytest.param({}, {"load_failed": True}, id="the-requests-own"),
    ],
)
def test_after_a_failed_load_requests_keep_to_warm_pods(
    policy: RoutingPolicy, declared: dict[str, Any], request_fields: dict[str, Any]
) -> None:
    pods = (PodSketch("pod-a", "warm", busy=1), PodSketch("pod-b"))
    state = measured_cluster(*pods, routing=policy, **declared)
    assert routed(state, **request_fields).decision == Wait(Reason.QUEUE_WARM_BUSY)
    state.pods["pod-a"].add_pending(slots=-1)
    decision = routed(state, **request_fields).decision
    assert isinstance(decision, SendTo)
    assert decision.predict == "pod-a"


def test_a_request_whose_load_failed_loads_again_where_no_pod_is_warm() -> None:
    decision = routed(measured_cluster(PodSketch("pod-a")), load_failed=True).decision
    assert isinstance(decision, SendTo)
    assert decision.mode is LoadMode.LOAD


@pytest.mark.parametrize("policy", [RoutingPolicy.AUTO, RoutingPolicy.COLOCATION_QUEUEING])
def test_before_its_backoff_a_failed_load_leaves_requests_to_a_suspect_pod(
    policy: RoutingPolicy,
) -> None:
    pods = (PodSketch("pod-a", "warm", is_suspect=True), PodSketch("pod-b"))
    state = measured_cluster(*pods, routing=policy, failure=failure())
    assert isinstance(routed(state).decision, Wait)
    state.pods["pod-a"].set_suspect(is_suspect=False)
    decision = routed(state).decision
    assert isinstance(decision, SendTo)
    assert decision.predict == "pod-a"


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([PodSketch("pod-a")], id="cold"),
        pytest.param(
            [PodSketch("pod-a", "warm", phase=PodPhase.DRAINING), PodSketch("pod-b")],
            id="warm-at-a-draining-pod",
        ),
    ],
)
def test_a_failed_load_is_not_retried_before_its_backoff(pods: list[PodSketch]) -> None:
    state = a_cluster(*pods)
    declare(state, failure=failure(http_status=507))
    state.residency.put(KEY, "not-known-yet", Residency(Tier.DEVICE, None, NOW_S, 100))
    decision = routed(state).decision
    assert isinstance(decision, Reject)
    assert decision.reason is Reason.LOAD_FAILED
    assert decision.retry_after_s == pytest.approx(7.0)
    assert decision.http_status == 507
    assert "truncated" in decision.message


@pytest.mark.parametrize(
    ("pods", "known"),
    [
        pytest.param([PodSketch("pod-a")], {"retry_at_s": NOW_S}, id="its-backoff-is-over"),
        pytest.param([PodSketch("pod-a")], {"key": "default/m@old"}, id="another-generation"),
        pytest.param([PodSketch("pod-a", "warm")], {}, id="warm-somewhere"),
    ],
)
def test_a_failed_load_does_not_reject_a_request_if(
    pods: list[PodSketch], known: dict[str, Any]
) -> None:
    state = a_cluster(*pods)
    declare(state, failure=failure(**known))
    assert isinstance(routed(state).decision, SendTo)


def test_a_request_expected_to_be_late_is_tried_only_as_a_probe() -> None:
    """Slow large requests do not shut small ones out: one is tried, and its time counts."""
    state = measured_cluster(PodSketch("pod-a", "warm"))
    estimates = state.pods["pod-a"].estimates
    estimates.add(KEY, "infer", [6.0] * 24)
    tried = routed(state, deadline_s=NOW_S + 0.1, may_probe=True)
    assert isinstance(tried.decision, SendTo)
    assert (tried.is_probe, tried.cost_s) == (True, 6.0)
    assert isinstance(routed(state, deadline_s=NOW_S + 0.1).decision, Reject)
    estimates.add(KEY, "infer", [0.006])
    again = routed(state, deadline_s=NOW_S + 0.1)
    assert isinstance(again.decision, SendTo)
    assert not again.is_probe


def estimates_of_large(state: ClusterState, *, now_s: float = NOW_S) -> None:
    """As a pod reports 24 bodies of up to 64 KiB that took 6 s each."""
    estimates = state.pods["pod-a"].estimates
    for measure in ("infer", infer_measure(3)):
        estimates.add(KEY, measure, [6.0] * 24, now_s)


def test_slow_large_requests_do_not_refuse_small_ones() -> None:
    state = measured_cluster(PodSketch("pod-a", "warm"))
    estimates_of_large(state)
    small = routed(state, deadline_s=NOW_S + 0.2, size_class=0)
    assert isinstance(small.decision, SendTo)
    assert not small.is_probe
    for size in (3, 4, None):
        large = routed(state, deadline_s=NOW_S + 0.2, size_class=size)
        assert isinstance(large.decision, Reject)


def test_a_size_that_was_measured_is_refused_by_its_own_times() -> None:
    state = measured_cluster(PodSketch("pod-a", "warm"))
    estimates_of_large(state)
    state.pods["pod-a"].estimates.add(KEY, infer_measure(0), [1.0, 1.1])
    assert isinstance(routed(state, deadline_s=NOW_S + 0.2, size_class=0).decision, Reject)
    assert isinstance(routed(state, deadline_s=NOW_S + 1.2, size_class=0).decision, SendTo)


def test_old_measurements_refuse_nobody() -> None:
    state = measured_cluster(PodSketch("pod-a", "warm"))
    estimates_of_large(state, now_s=NOW_S - MAX_AGE_S - 1)
    assert isinstance(routed(state, deadline_s=NOW_S + 0.1).decision, SendTo)
    estimates_of_large(state, now_s=NOW_S - MAX_AGE_S + 1)
    assert isinstance(routed(state, deadline_s=NOW_S + 0.1).decision, Reject)


@pytest.mark.parametrize(
    ("queued", "busy", "is_sent"),
    [
        pytest.param(2, 1, False, id="others-wait-for-the-busy-pod"),
        pytest.param(1, 1, True, id="nobody-else-waits"),
        pytest.param(2, 0, True, id="the-pod-is-idle"),
    ],
)
def test_a_request_that_might_be_late_is_not_sent_before_others(
    queued: int, busy: int, is_sent: bool
) -> None:
    state = measured_cluster(PodSketch("pod-a", "warm", slots=4, busy=busy))
    forecast = routed(state, deadline_s=NOW_S + 60).decision
    assert isinstance(forecast, SendTo)
    assert forecast.forecast is not None
    left_s = forecast.forecast.seconds * (1 + CONTESTED_MARGIN) / 2
    found = routed(state, deadline_s=NOW_S + left_s, queued=queued)
    assert isinstance(found.decision, SendTo) == is_sent


@pytest.mark.parametrize("queued", [1, 2])
def test_a_wait_for_what_is_only_guessed_is_not_rejected(queued: int) -> None:
    """When another gateway's request ends is a guess: the slot may be free at once."""
    state = measured_cluster(PodSketch("pod-a", "warm", busy=1), routing=RoutingPolicy.AUTO)
    waits = routed(state, deadline_s=NOW_S + 60, queued=queued).decision
    assert isinstance(waits, Wait)
    assert waits.forecast is not None
    assert waits.forecast.guessed_s >= MEASURED["infer"]
    needed_s = waits.forecast.seconds - waits.forecast.guessed_s
    found = routed(state, deadline_s=NOW_S + needed_s + 0.01, queued=queued)
    assert isinstance(found.decision, Wait)
    late = routed(state, deadline_s=NOW_S + needed_s - 0.01, queued=queued)
    assert isinstance(late.decision, Reject)


@pytest.mark.parametrize(
    ("at", "mode"),
    [
        pytest.param("nothing", LoadMode.LOAD, id="a-load"),
        pytest.param("loading:remote", LoadMode.JOIN, id="the-rest-of-one"),
    ],
)
def test_a_load_takes_no_longer_where_others_wait(at: str, mode: LoadMode) -> None:
    state = measured_cluster(PodSketch("pod-a", at, slots=4, busy=1), routing="colocation")
    needed_s = MEASURED["load:remote"] + MEASURED["infer"]
    found = routed(state, deadline_s=NOW_S + needed_s + 0.01, queued=2).decision
    assert isinstance(found, SendTo)
    assert found.mode is mode
    late = routed(state, deadline_s=NOW_S + needed_s - 0.01, queued=2)
    assert isinstance(late.decision, Reject)


def contested(rate_per_s: float) -> ClusterState:
    """One pod of one place, which holds a model with one request per second; `KEY` is nowhere."""
    state = measured_cluster(
        PodSketch("pod-a", slots=4, memory_bytes=600), routing=RoutingPolicy.AUTO
    )
    held = "default/held@0"
    state.residency.device_bytes.update({KEY: 500, held: 500})
    state.residency.put(held, "pod-a", Residency(Tier.DEVICE, None, NOW_S, 500))
    state.pods["pod-a"].estimates.add(held, "load:remote", [0.8])
    for key, per_s in ((held, 1.0), (KEY, rate_per_s)):
        for n in reversed(range(int(60 * per_s))):
            state.arrivals.record(key, NOW_S - n / per_s)
    return state


@pytest.mark.parametrize(
    ("rate_per_s", "is_loaded"),
    [
        pytest.param(4.0, True, id="wanted-more-than-what-it-evicts"),
        pytest.param(0.1, False, id="wanted-less"),
    ],
)
def test_a_load_that_ends_after_the_deadline_is_an_investment(
    rate_per_s: float, is_loaded: bool
) -> None:
    """Else a model whose load takes longer than its deadline would come back by probes alone."""
    found = routed(contested(rate_per_s), deadline_s=NOW_S + 0.5)
    assert isinstance(found.decision, SendTo) is is_loaded
    assert not found.is_probe


def test_a_longer_load_is_worth_no_more_to_requests_that_are_late_without_it() -> None:
    """A request that is rejected loses its deadline, however long the load takes."""
    left_s = {}
    for load_s in (2.0, 4.0):
        state = contested(4.0)
        state.pods["pod-a"].estimates.add(KEY, "load:remote", [load_s] * 24)
        for deadline_s in (1.0, 60.0):
            view = request(key=KEY, behind=2, deadline_s=NOW_S + deadline_s)
            option = cold_start(view, state, (), (), NOW_S)
            assert option is not None
            left_s[load_s, deadline_s] = -option.leaves_s
    assert left_s[2.0, 1.0] == left_s[4.0, 1.0] < left_s[2.0, 60.0] < left_s[4.0, 60.0]


def test_a_model_without_requests_is_loaded_into_free_memory_whatever_its_deadline() -> None:
    state = measured_cluster(PodSketch("pod-a", slots=4), routing=RoutingPolicy.AUTO)
    assert isinstance(routed(state, deadline_s=NOW_S + 0.5).decision, SendTo)


@pytest.mark.parametrize("age_s", [0.0, MAX_AGE_S + 1])
def test_a_load_with_a_price_is_no_probe_however_old_its_measurements(age_s: float) -> None:
    """Rejections pay for it; tried now and then it would evict what others need, and end late."""
    state = contested(0.1)
    state.pods["pod-a"].estimates.add(KEY, "infer", [0.3], NOW_S - age_s)
    found = routed(state, deadline_s=NOW_S + 0.5, may_probe=True)
    assert isinstance(found.decision, Reject)
    assert found.decision.loss is not None


@pytest.mark.parametrize("may_try", [False, True])
def test_a_transfer_that_was_never_measured_may_be_forbidden(may_try: bool) -> None:
    known = {name: value for name, value in MEASURED.items() if name != "network"}
    state = a_cluster(PodSketch("pod-a", "warm", busy=1), PodSketch("pod-b"), measured=known)
    declare(state, routing=RoutingPolicy.AUTO)
    request = IncomingRequest("r", NAME, NOW_S, 0.0, 1, deadline_s=NOW_S + 9.0)
    found = route_request(
        request, state.models, state, now_s=NOW_S, may_try_transfer=may_try
    ).decision
    assert not isinstance(found, Reject)
    assert ("proxy" in [each.name for each in found.options]) is may_try


def test_what_was_lost_by_rejections_pays_for_a_load() -> None:
    state = contested(0.1)
    rejected = routed(state, deadline_s=NOW_S + 0.5)
    assert isinstance(rejected.decision, Reject)
    assert rejected.decision.loss is not None
    assert rejected.decision.loss.seconds == pytest.approx(0.5)
    [cold] = rejected.decision.options
    request = IncomingRequest("r", NAME, NOW_S, 0.0, 1, deadline_s=NOW_S + 0.5)
    price_s = cold.delays_s + cold.evicts_s + cold.leaves_s
    for lost_s, kind in ((0.9 * price_s, Reject), (1.1 * price_s, SendTo)):
        found = route_request(request, state.models, state, now_s=NOW_S, lost_s=lost_s)
        assert isinstance(found.decision, kind)
