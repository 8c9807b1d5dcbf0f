"""Direct placement, queueing, timeouts and passive health in virtual time."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from gateway.dispatch.admission import MAX_AGE_S
from gateway.dispatch.pending_placement import PendingPlacement
from gateway.dispatch.placer import POLL_INTERVAL_S, PlanRefused
from gateway.dispatch.retries import FailedAttempts, NotExecuted, OutlierDetection, Retries
from gateway.routing.decision import Decision, Reason, RequestView, SendTo, Wait
from gateway.routing.route_request import IncomingRequest
from gateway.routing.routing_policies import ROUTING_POLICIES
from registry.domain.cluster import ChangeApplier, ClusterState
from registry.domain.model import ModelName, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod_index import Residency
from registry.domain.pod_state import LoadMode
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, declare
from tests.gateway.virtual_placer import VirtualPlacer

QUEUEING = RoutingPolicy.COLOCATION_QUEUEING
KEY = ModelSpec(ModelName("default", "m"), "file:///m").key
"""Of the model that `declare` declares by default."""


MEASURED = {"infer": 0.3, "preprocess": 0.0, "postprocess": 0.0}


def busy_pod(**policy: Any) -> tuple[VirtualPlacer, ModelSpec]:
    """A warm pod whose only slot is taken."""
    state = cluster(PodSketch("pod-a", "warm"), key=KEY)
    spec = declare(state, routing=QUEUEING, **policy)
    virtual = VirtualPlacer(state)
    state.pods["pod-a"].add_pending(slots=1, ongoing=1)
    return virtual, spec


def test_a_request_for_a_free_warm_pod_is_placed_at_once_without_a_timer() -> None:
    state = cluster(PodSketch("pod-a", "warm"), key=KEY)
    virtual = VirtualPlacer(state)
    placement = virtual.place(declare(state))
    assert virtual.placed == [placement]
    assert not placement.is_pending
    assert placement.queue_key is None
    assert virtual.is_idle


def test_a_refused_request_is_routed_again_then_queued_with_a_growing_backoff() -> None:
    state = cluster(PodSketch("pod-a", "warm"), key=KEY)
    virtual = VirtualPlacer(state)
    virtual.replies.extend([False] * 13)
    virtual.place(declare(state, routing=QUEUEING))
    assert virtual.reserved_s == [0.0] * 4
    virtual.run_for(1.0)
    backoff_s = [0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1, 0.1, 0.1]
    expected = list(itertools.accumulate(backoff_s, initial=0.0))
    assert virtual.reserved_s[4:] == pytest.approx(expected)
    assert len(virtual.placed) == 1


def test_a_late_refusal_leads_to_another_try_and_a_late_grant_places() -> None:
    state = cluster(PodSketch("pod-a", "warm"), key=KEY)
    virtual = VirtualPlacer(state)
    virtual.replies.extend([None, None])
    placement = virtual.place(declare(state))
    virtual.placer.on_reply(placement, is_granted=False)
    assert len(virtual.reserved_s) == 2
    virtual.placer.on_reply(placement, is_granted=True)
    assert virtual.placed == [placement]


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_grant_for_a_cancelled_request_is_released(is_queued: bool) -> None:
    virtual, spec = busy_pod()
    virtual.replies.append(None)
    if not is_queued:
        virtual.free_slot("pod-a")
    placement = virtual.place(spec)
    if is_queued:
        virtual.end_request("pod-a")
        virtual.run_for(0.0)
    assert len(virtual.reserved_s) == 1
    virtual.placer.cancel(placement)
    virtual.placer.on_reply(placement, is_granted=True)
    assert (virtual.placed, virtual.released) == ([], [placement])
    assert virtual.placer.queue_stats() == {}


def test_a_queued_request_gets_a_released_slot_before_a_new_one() -> None:
    virtual, spec = busy_pod()
    queued = virtual.place(spec)
    virtual.end_request("pod-a")
    newcomer = virtual.place(spec)
    assert virtual.placed == [queued]
    virtual.end_request("pod-a")
    virtual.run_for(0.0)
    assert virtual.placed == [queued, newcomer]


def test_the_depth_of_each_queue_is_known() -> None:
    virtual, spec = busy_pod()
    depths = virtual.state.queue_depths
    placements = [virtual.place(spec) for _ in range(3)]
    assert depths == {KEY: 3}
    virtual.placer.cancel(placements[1])
    assert depths == {KEY: 2}
    virtual.replies.append(False)  # the first is refused and returns after a pause
    virtual.end_request("pod-a")
    virtual.run_for(0.001)
    assert depths == {}
    virtual.run_for(1.0)
    assert virtual.placed == [placements[2]]
    assert depths == {KEY: 1}
    virtual.placer.cancel(placements[0])
    assert depths == {}


def test_queued_requests_are_routed_again_at_intervals_without_a_change() -> None:
    virtual, spec = busy_pod()
    virtual.place(spec)
    virtual.run_for(0.0)
    virtual.free_slot("pod-a")
    virtual.run_for(POLL_INTERVAL_S - 0.01)
    assert virtual.placed == []
    virtual.run_for(0.02)
    assert len(virtual.placed) == 1


def test_requests_gather_for_a_load_that_evicts_until_the_longest_wait_is_over() -> None:
    state = cluster(PodSketch("pod-a", slots=4, memory_bytes=600))
    spec = declare(state, routing=RoutingPolicy.AUTO, max_load_wait_s=0.3)
    held = "default/held@0"
    state.residency.device_bytes.update({spec.key: 500, held: 500})
    state.residency.put(held, "pod-a", Residency(Tier.DEVICE, None, NOW_S, 500))
    for n in reversed(range(60)):
        state.arrivals.record(held, NOW_S - n)
    virtual = VirtualPlacer(state)
    first = virtual.place(spec)
    virtual.run_for(0.29)
    assert virtual.placed == []
    virtual.run_for(0.02)
    assert virtual.placed == [first]
    assert virtual.reserved_s == [0.3]


@pytest.mark.parametrize(
    ("deadline_in_s", "earliest_s", "latest_s"),
    [
        pytest.param(5.0, 20.0, 25.0, id="than-ten-loads"),
        pytest.param(1.5, 30.0, 65.0, id="than-one-once-enough-were-refused"),
    ],
)
def test_a_model_is_loaded_whose_deadlines_are_shorter(
    deadline_in_s: float, earliest_s: float, latest_s: float
) -> None:
    state = cluster(PodSketch("pod-a", slots=4))
    spec = declare(state, routing=RoutingPolicy.AUTO)
    held = "default/held@0"
    times = {"load:remote": 2.0, "infer": 0.1, "preprocess": 0.0, "postprocess": 0.0}
    ChangeApplier(state).apply(
        state.version + 1,
        [["samples", key, name, [times[name]]] for key in (spec.key, held) for name in times],
    )
    state.residency.device_bytes.update({spec.key: 1000, held: 1000})
    state.residency.put(held, "pod-a", Residency(Tier.DEVICE, None, NOW_S, 1000))
    state.queue_depths[held] = 40
    virtual = VirtualPlacer(state)
    while not virtual.reserved_s and virtual.events.now_s < NOW_S + 2 * latest_s:
        virtual.place(spec, deadline_in_s=deadline_in_s)
        virtual.run_for(0.5)
    assert virtual.errors
    assert earliest_s <= virtual.reserved_s[0] < latest_s


def test_polls_continue_after_an_interval_in_which_the_only_request_had_a_reservation() -> None:
    virtual, spec = busy_pod()
    placement = virtual.place(spec)
    virtual.run_for(0.0)
    virtual.replies.append(None)
    virtual.end_request("pod-a")
    virtual.run_for(2 * POLL_INTERVAL_S)
    virtual.state.pods["pod-a"].add_pending(slots=1, ongoing=1)
    virtual.placer.on_reply(placement, is_granted=False)
    virtual.run_for(0.01)
    virtual.free_slot("pod-a")
    virtual.run_for(2 * POLL_INTERVAL_S)
    assert virtual.placed == [placement]


def test_a_queued_request_reports_the_tier_of_the_load_that_it_waited_for() -> None:
    state = cluster(PodSketch("pod-a", "loading:disk", busy=1), key=KEY)
    virtual = VirtualPlacer(state)
    placement = virtual.place(declare(state, routing=QUEUEING))
    assert placement.wait_reason is Reason.QUEUE_WARMING
    virtual.end_request("pod-a")
    virtual.run_for(0.0)
    assert virtual.placed == [placement]
    assert placement.awaited_tier == "disk"


def test_a_request_that_was_never_first_in_the_queue_reports_the_load_that_all_waited_for() -> None:
    state = cluster(PodSketch("pod-a"), key=KEY)
    virtual, spec = VirtualPlacer(state), declare(state, routing=QUEUEING)
    virtual.replies.extend([False] * 9)  # another gateway's request loads; this view is outdated
    first, second = virtual.place(spec), virtual.place(spec)
    state.residency.put(KEY, "pod-a", Residency(Tier.REMOTE, Tier.REMOTE, NOW_S, 500))
    state.pods["pod-a"].add_pending(slots=1, ongoing=1)
    virtual.run_for(POLL_INTERVAL_S)
    assert (first.wait_reason, second.awaited_tier) == (Reason.QUEUE_WARMING, None)
    state.residency.put(KEY, "pod-a", Residency(Tier.DEVICE, None, NOW_S, 500))
    for _ in range(3):
        virtual.end_request("pod-a")
        virtual.run_for(POLL_INTERVAL_S)
    assert virtual.placed == [first, second]
    assert [each.awaited_tier for each in virtual.placed] == ["remote", "remote"]
    assert virtual.place(spec).awaited_tier is None


def test_rejects_a_request_if_the_queue_is_full() -> None:
    virtual, spec = busy_pod(queue_depth=1)
    virtual.place(spec)
    virtual.place(spec)
    [error] = virtual.errors
    assert error.reason is Reason.QUEUE_FULL
    assert "queue-depth is 1" in str(error)
    assert error.retry_after_s


def test_refusals_of_a_full_queue_take_one_decision_until_something_changes() -> None:
    virtual, spec = busy_pod(queue_depth=1)
    virtual.place(spec)
    rate = virtual.state.arrivals.rate_per_s(spec.key, NOW_S)
    refused = [virtual.place(spec) for _ in range(3)]
    decisions = virtual.decisions[1:]
    assert len(decisions) == len(virtual.errors) == 3
    assert decisions[0] is decisions[1] is decisions[2]
    assert len({str(error) for error in virtual.errors}) == 1
    assert len({id(error) for error in virtual.errors}) == 3  # each has a traceback of its own
    assert not any(each.is_pending for each in refused)
    assert virtual.state.arrivals.rate_per_s(spec.key, NOW_S) == pytest.approx(4 * rate)
    virtual.placer.notify_change()
    virtual.run_for(0.0)
    virtual.place(spec)
    assert virtual.decisions[-1] is not decisions[0]
    known = virtual.decisions[-1]
    virtual.run_for(MAX_AGE_S + 0.001)
    virtual.place(spec)
    assert virtual.decisions[-1] is not known


def test_a_shorter_queue_takes_a_request_like_one_just_refused() -> None:
    virtual, spec = busy_pod(queue_depth=1)
    first = virtual.place(spec)
    assert not virtual.place(spec).is_pending
    virtual.placer.cancel(first)
    assert virtual.place(spec).is_pending


def test_changes_that_hardly_shorten_a_long_queue_end_no_refusal() -> None:
    virtual, spec = busy_pod(queue_depth=40)
    queued = [virtual.place(spec) for _ in range(40)]
    for placement in queued[:3]:
        virtual.place(spec)
        virtual.placer.cancel(placement)  # and all queued ones may be routed again
    refused = [each for each in virtual.decisions if each is virtual.decisions[40]]
    assert len(refused) == len(virtual.errors) == 3
    assert virtual.place(spec).is_pending


def test_a_refusal_for_a_deadline_holds_for_nearer_ones_only() -> None:
    state = cluster(PodSketch("pod-a", "warm"), key=KEY, measured=MEASURED)
    spec, virtual = declare(state, routing=QUEUEING), VirtualPlacer(state)
    for deadline_in_s in (0.2, 0.19, 0.21):
        virtual.place(spec, deadline_in_s=deadline_in_s)
    assert [error.reason for error in virtual.errors] == [Reason.DEADLINE] * 3
    first, nearer, later = virtual.decisions
    assert first is nearer
    assert first is not later


def test_a_model_without_queue_is_served_while_another_is_queued() -> None:
    state = cluster(PodSketch("pod-a", "warm", busy=1), PodSketch("pod-b"), key=KEY)
    waiting = declare(state, routing=QUEUEING)
    other = declare(state, "other", routing=QUEUEING, queue_depth=0)
    virtual = VirtualPlacer(state)
    virtual.place(waiting)
    assert virtual.place(other) in virtual.placed


def test_deleting_a_model_rejects_its_queued_requests() -> None:
    virtual, spec = busy_pod()
    virtual.place(spec)
    del virtual.state.models[spec.name]
    virtual.end_request("pod-a")
    virtual.run_for(0.0)
    assert [error.reason for error in virtual.errors] == [Reason.MODEL_GONE]


def test_tenants_take_turns_at_a_saturated_pod() -> None:
    state = cluster(PodSketch("pod-a"))
    least_loaded = RoutingPolicy.LEAST_LOADED
    loud, quiet = (declare(state, namespace=name, routing=least_loaded) for name in ("l", "q"))
    virtual = VirtualPlacer(state)
    for spec in [loud] * 5 + [quiet] * 2:
        virtual.place(spec)
    for _ in range(6):
        virtual.end_request("pod-a")
        virtual.run_for(0.0)
    assert [each.spec.name.namespace for each in virtual.placed] == list("llqlqll")


@pytest.mark.parametrize(
    ("deadline_in_s", "reason"),
    [
        pytest.param(10.0, Reason.DEADLINE, id="deadline"),
        pytest.param(40.0, Reason.QUEUE_TIMEOUT, id="queue-timeout"),
        pytest.param(None, Reason.QUEUE_TIMEOUT, id="no-deadline"),
    ],
)
@pytest.mark.parametrize("is_reserving", [False, True])
def test_queueing_ends_at_the_nearer_limit(
    deadline_in_s: float | None, reason: Reason, is_reserving: bool
) -> None:
    virtual, spec = busy_pod(queue_timeout_s=20.0)
    placement = virtual.place(spec, deadline_in_s=deadline_in_s)
    if is_reserving:
        virtual.replies.append(None)
        virtual.end_request("pod-a")
    limit_s = min(20.0, deadline_in_s or 20.0)
    virtual.run_for(limit_s - 0.01)
    assert virtual.errors == []
    virtual.run_for(0.02)
    assert [error.reason for error in virtual.errors] == [reason]
    assert virtual.placer.queued_total == 0
    if is_reserving:
        virtual.placer.on_reply(placement, is_granted=True)
        assert virtual.released == [placement]


@pytest.mark.parametrize("elapsed_s", [9.995, 10.0, 11.0], ids=["early", "on-time", "late"])
def test_the_error_of_a_timeout_does_not_depend_on_the_clock(elapsed_s: float) -> None:
    virtual, spec = busy_pod(queue_timeout_s=20.0)
    virtual.place(spec, deadline_in_s=10.0)
    timeout = next(each for each in virtual.events._heap if each[0] == NOW_S + 10.0)
    virtual.events.now_s = NOW_S + elapsed_s
    timeout[2](timeout[3])
    assert [error.reason for error in virtual.errors] == [Reason.DEADLINE]


@pytest.mark.parametrize(
    ("reason", "for_slots", "for_s"),
    [
        pytest.param(NotExecuted.UNREACHABLE, 0, 1.0, id="suspect"),
        pytest.param(NotExecuted.SLOTS, 0, 0.02, id="full"),
        pytest.param(NotExecuted.SLOTS, 9, 0.5, id="full-again"),
    ],
)
def test_a_pod_is_avoided_for_a_while(reason: NotExecuted, for_slots: int, for_s: float) -> None:
    state = cluster(PodSketch("pod-a", "warm", slots=2), key=KEY)
    virtual = VirtualPlacer(state)
    health = OutlierDetection(virtual.events, virtual.placer.notify_change)
    failed, pod = FailedAttempts(for_slots=for_slots), state.pods["pod-a"]
    Retries(health, state).record_failure(failed, reason, entry=pod, predict=pod)
    virtual.place(declare(state, routing=QUEUEING))
    virtual.run_for(for_s - 0.001)
    assert virtual.placed == []
    virtual.run_for(0.002)
    assert len(virtual.placed) == 1


def test_a_full_device_is_avoided_by_the_refused_request_alone() -> None:
    pods = (PodSketch("pod-a", "warm", slots=2), PodSketch("pod-b", "warm", slots=2, busy=1))
    state = cluster(*pods, key=KEY)
    virtual, failed = VirtualPlacer(state), FailedAttempts()
    health = OutlierDetection(virtual.events, virtual.placer.notify_change)
    full, spec = state.pods["pod-a"], declare(state, routing=QUEUEING)
    Retries(health, state).record_failure(
        failed, NotExecuted.DEVICE_FULL, entry=state.pods["pod-b"], predict=full
    )
    assert failed.full_pod is full
    with health.without(full):
        virtual.place(spec)
    assert (full.slots_busy, full.is_accepting) == (0, True)
    virtual.place(spec)
    assert full.slots_busy == 1


def planned(virtual: VirtualPlacer, spec: ModelSpec) -> PendingPlacement:
    return PendingPlacement(IncomingRequest("planned", spec.name, virtual.events.now_s, 0.0, 99))


def test_a_plan_takes_no_slot_that_a_queued_request_waits_for() -> None:
    virtual, spec = busy_pod()
    queued = virtual.place(spec)
    virtual.end_request("pod-a")
    assert virtual.placer.place_planned(planned(virtual, spec), "pod-a") is False
    assert virtual.placed == [queued]


def test_a_plan_leaves_slots_to_other_tenants() -> None:
    state = cluster(PodSketch("pod-a", "warm", slots=4), key=KEY)
    spec, virtual = declare(state), VirtualPlacer(state)
    virtual.place(declare(state, "other", namespace="quiet"))
    granted = [virtual.placer.place_planned(planned(virtual, spec), "pod-a") for _ in range(3)]
    assert granted == [True, True, False]


def test_a_plan_whose_reservation_is_refused_is_made_again() -> None:
    state = cluster(PodSketch("pod-a", "warm"), key=KEY)
    spec, virtual = declare(state), VirtualPlacer(state)
    virtual.replies.append(None)
    request = planned(virtual, spec)
    assert virtual.placer.place_planned(request, "pod-a") is None
    virtual.placer.on_reply(request, is_granted=False)
    assert [type(each) for each in virtual.errors] == [PlanRefused]
    assert (len(virtual.reserved_s), request.is_pending) == (1, False)


class SlowPolicy:
    """Lets all models wait but those named, and takes half a millisecond for it."""

    def __init__(self, virtual: VirtualPlacer) -> None:
        self.virtual = virtual
        self.decided: list[str] = []
        self.placed: set[str] = set()

    def __call__(self, request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
        self.virtual.events.now_s += 0.0005
        self.decided.append(request.key)
        if request.key in self.placed:
            return SendTo("pod-a", "pod-a", LoadMode.LOAD, Reason.COLD)
        return Wait(Reason.QUEUE_MEMORY)

    def take(self) -> list[str]:
        """Those decided since the last call."""
        decided, self.decided = self.decided, []
        return decided


def run_until(virtual: VirtualPlacer, is_reached: Callable[[], bool]) -> None:
    while not is_reached():
        virtual.run_for(0.02)


def forty_models_wait(
    monkeypatch: pytest.MonkeyPatch,
    *pods: PodSketch,
    warm_requests: int = 0,
    are_of_others: bool = False,
) -> tuple[VirtualPlacer, SlowPolicy, list[ModelSpec]]:
    """Beside a pod that is warm for another model; a change has come, and a first pass."""
    state = cluster(
        *(pods or [PodSketch("pod-a", "warm", slots=4)]),
        key=KEY,
        measured={"infer": 0.05, "load:remote": 5.0},
    )
    state.residency.device_bytes[KEY] = 500
    virtual = VirtualPlacer(state)
    policy = SlowPolicy(virtual)
    monkeypatch.setitem(ROUTING_POLICIES, RoutingPolicy.RANDOM, policy)
    specs = [
        declare(
            state,
            f"m{number}",
            namespace=f"t{number}" if are_of_others else "default",
            routing=RoutingPolicy.RANDOM,
        )
        for number in range(40)
    ]
    warm = [declare(state)] * warm_requests
    for spec in [*specs, *warm] if are_of_others else [*warm, *specs]:
        virtual.place(spec)
    for _ in range(2):  # up to the end of the first pass, and of a poll's
        run_until(virtual, lambda: bool(policy.decided))
        run_until(virtual, lambda: not policy.take())
    virtual.placer.notify_change()
    virtual.run_for(0.0)
    return virtual, policy, specs


def test_a_pass_over_many_models_goes_on_when_others_had_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    virtual, policy, specs = forty_models_wait(monkeypatch)
    first = len(policy.decided)
    assert 0 < first < 20
    placement = virtual.place(ModelSpec(ModelName("default", "m"), "file:///m"))
    assert virtual.placed == [placement]
    assert len(policy.decided) == first
    virtual.run_for(0.2)
    assert set(policy.decided) == {spec.key for spec in specs}


def test_a_change_during_a_paused_pass_reaches_those_that_it_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    virtual, policy, _ = forty_models_wait(monkeypatch)
    policy.placed.add(policy.decided[-1])
    virtual.placer.notify_change()
    virtual.run_for(POLL_INTERVAL_S / 2)
    assert [each.spec.key for each in virtual.placed] == [*policy.placed]


def test_a_new_request_takes_no_slot_from_one_queued_for_its_model_while_a_pass_is_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pods = PodSketch("pod-a", "warm"), PodSketch("pod-b", memory_bytes=1000, used_bytes=1000)
    virtual, policy, specs = forty_models_wait(monkeypatch, *pods, warm_requests=2)
    [placed] = virtual.placed
    virtual.end_request("pod-a")
    new = virtual.place(placed.spec)
    assert new.is_pending
    assert [each.spec for each in virtual.placed] == [placed.spec] * 2
    policy.take()
    virtual.run_for(POLL_INTERVAL_S / 2)  # those that were passed have the change's turn, too
    assert set(policy.decided) == {spec.key for spec in specs}


def test_a_slot_is_another_models_whose_tenants_turn_is_late_while_a_pass_is_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pods = PodSketch("pod-a", "warm"), PodSketch("pod-b", memory_bytes=1000, used_bytes=1000)
    virtual, policy, _ = forty_models_wait(monkeypatch, *pods, warm_requests=2, are_of_others=True)
    assert 4 < len(policy.decided) < 40
    [placed] = virtual.placed
    other = declare(virtual.state, "other")
    at = ["at", other.key, "pod-a", f"device|-|{int(NOW_S * 1000)}|100"]
    ChangeApplier(virtual.state).apply(virtual.state.version + 1, [at])
    virtual.end_request("pod-a")
    new = virtual.place(other)
    assert [each.spec for each in virtual.placed] == [placed.spec] * 2
    assert new.is_pending


def test_new_requests_come_after_those_of_their_model_that_a_paused_pass_has_not_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    virtual, policy, specs = forty_models_wait(monkeypatch)
    policy.placed.add(specs[-1].key)
    new = virtual.place(specs[-1])
    [queued, _] = virtual.placed
    assert virtual.placed == [queued, new]
