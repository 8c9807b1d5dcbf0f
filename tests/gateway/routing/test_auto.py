"""The `auto` policy: its options, its choice, and the losses that it reports."""

import pytest

from gateway.routing.auto import auto, weigh
from gateway.routing.cold_start import cold_start
from gateway.routing.decision import Decision, Reason, RoutingOption, SendTo, Wait
from registry.domain.cluster import ClusterState
from registry.domain.model import Tier
from registry.domain.pod_index import Residency
from registry.domain.pod_state import LoadMode
from tests.gateway.cluster_states import KEY, NOW_S, PodSketch, cluster, request

A, B, C = "pod-a", "pod-b", "pod-c"
JOIN, LOAD = LoadMode.JOIN, LoadMode.LOAD
MEASURED = {
    "load:remote": 0.8, "infer": 0.3, "preprocess": 0.0, "postprocess": 0.0, "network": 0.002,
}  # fmt: skip
SLOW = {**MEASURED, "infer": 5.0}


def decide(*pods: PodSketch, measured: dict[str, float] = MEASURED) -> Decision:
    return auto(request(), cluster(*pods, measured=measured), NOW_S)


def decision_options(decision: Decision) -> tuple[RoutingOption, ...]:
    assert isinstance(decision, SendTo | Wait)
    return decision.options


def test_takes_an_idle_warm_pod_without_forecasting_other_options() -> None:
    decision = decide(PodSketch(A), PodSketch(B, "warm"))
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.reason, decision.options) == (B, Reason.WARM, ())
    assert decision.forecast is not None
    assert decision.forecast.seconds == pytest.approx(0.3)


def test_starts_cold_if_no_pod_is_warm() -> None:
    decision = decide(PodSketch(A), PodSketch(B, "disk"))
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.mode, decision.reason) == (B, LOAD, Reason.COLD)
    assert decision.max_other_copies == 0


def test_another_cold_start_carries_the_number_of_known_copies() -> None:
    decision = decide(PodSketch(A, "warm", busy=1), PodSketch(B), measured=SLOW)
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.reason) == (B, Reason.COLD_WARM_BUSY)
    assert decision.max_other_copies == 1


def test_the_decision_lists_every_option() -> None:
    state = cluster(PodSketch(A, "warm", busy=1), PodSketch(B), measured=MEASURED)
    decision = weigh(request(), state, NOW_S, has_hopeless=True)
    assert [each.name for each in decision_options(decision)] == ["queue", "proxy", "cold start"]


def test_proxies_nothing_that_takes_longer_than_a_load() -> None:
    decision = decide(PodSketch(A, "warm", busy=1), PodSketch(B), measured=SLOW)
    assert [each.name for each in decision_options(decision)] == ["queue", "cold start"]


def test_a_further_copy_may_come_from_a_tier_that_was_never_measured() -> None:
    state = cluster(PodSketch(A, "warm", busy=1), PodSketch(B, "disk"), measured=SLOW)
    cold = cold_start(request(), state, state.warm(KEY), (), NOW_S)
    assert cold is not None
    assert not cold.forecast.is_measured


def test_joins_a_load_at_a_pod_with_a_free_slot() -> None:
    decision = decide(PodSketch(A, "loading:remote", slots=2, busy=1), PodSketch(B, busy=1))
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.mode, decision.reason) == (A, JOIN, Reason.WARMING)


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        pytest.param([PodSketch(A, busy=1)], Reason.QUEUE_NO_SLOT, id="no-slot"),
        pytest.param([PodSketch(A, "warm", busy=1)], Reason.QUEUE_WARM_BUSY, id="warm-busy"),
        pytest.param([PodSketch(A, "loading:host", busy=1)], Reason.QUEUE_WARMING, id="warming"),
        pytest.param([], Reason.NO_PODS, id="no-pods"),
    ],
)
def test_waits(pods: list[PodSketch], reason: Reason) -> None:
    decision = decide(*pods)
    assert isinstance(decision, Wait)
    assert decision.reason is reason


def test_starts_cold_if_the_queue_stalls() -> None:
    pods = [PodSketch(A, "warm", busy=1), PodSketch(B)]
    state = cluster(*pods, measured={**MEASURED, "network": 5.0})
    assert isinstance(auto(request(), state, NOW_S), Wait)
    after_a_second = auto(request(stalled_s=1.0), state, NOW_S + 1.0)
    assert isinstance(after_a_second, SendTo)
    assert after_a_second.entry == B


def test_starts_cold_once_earlier_requests_lost_the_time_of_a_load() -> None:
    state = cluster(PodSketch(A, "warm", busy=1), PodSketch(B), measured=MEASURED)
    first = auto(request(), state, NOW_S)
    assert isinstance(first, SendTo | Wait)
    assert first.loss is not None
    assert first.loss.seconds == pytest.approx(0.3)
    assert first.loss.load_s == pytest.approx(0.8)
    later = auto(request(lost_s=0.6), state, NOW_S)
    assert isinstance(later, SendTo)
    assert (later.entry, later.mode, later.loss) == (B, LOAD, None)
    assert later.forecast is not None
    assert later.forecast.seconds == pytest.approx(0.8 + 0.3)


def test_credit_never_makes_a_request_miss_its_deadline() -> None:
    state = cluster(PodSketch(A, "warm", busy=1), PodSketch(B), measured=MEASURED)
    view = request(lost_s=100.0, deadline_s=NOW_S + 1.0)
    decision = auto(view, state, NOW_S)
    assert not (isinstance(decision, SendTo) and decision.mode is LOAD)


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([PodSketch(A, "warm"), PodSketch(B)], id="an-idle-copy"),
        pytest.param([PodSketch(A, "warm", busy=1)], id="nowhere-to-load"),
        pytest.param(
            [PodSketch(A, "warm", busy=1), PodSketch(C, "loading:remote", busy=1), PodSketch(B)],
            id="a-copy-in-progress",
        ),
    ],
)
def test_no_loss_is_counted_that_a_load_could_not_avoid(pods: list[PodSketch]) -> None:
    decision = decide(*pods)
    assert isinstance(decision, SendTo | Wait)
    assert decision.loss is None


RATES_PER_S = {"hot": 5.0, "hot-too": 5.0, "cold": 0.05, "cold-too": 0.05, "m": 1.0}
WARM = Residency(Tier.DEVICE, None, NOW_S, 500)
LOADING = Residency(Tier.DISK, Tier.DISK, NOW_S, 500)


def full(*pods: PodSketch, held: Residency = WARM, **at: str) -> ClusterState:
    """Pods of two places; those in `at` hold two models with 5, or with 0.05, requests/s each."""
    state = cluster(*pods, measured=MEASURED)
    state.residency.device_bytes[KEY] = 500
    for name, per_s in RATES_PER_S.items():
        key = f"default/{name}@0"
        state.pods[A].estimates.add(key, "load:disk", [0.8])
        for n in reversed(range(int(60 * per_s))):
            state.arrivals.record(key, NOW_S - n / per_s)
    for name, pod in at.items():
        state.residency.put(f"default/{name}@0", pod, held)
        state.residency.put(f"default/{name}-too@0", pod, held)
    return state


def test_a_cold_start_evicts_where_that_costs_least() -> None:
    state = full(PodSketch(A), PodSketch(B, slots=9), hot=A, cold=B)
    decision = auto(request(draw=0.0), state, NOW_S)
    assert isinstance(decision, SendTo)
    assert decision.entry == B


def test_a_load_goes_to_free_room_rather_than_to_a_nearer_tier_that_is_full() -> None:
    state = full(PodSketch(A, "disk"), PodSketch(B), hot=A)
    decision = auto(request(), state, NOW_S)
    assert isinstance(decision, SendTo)
    assert decision.entry == B


def test_waits_where_loads_in_progress_take_all_memory() -> None:
    state = full(PodSketch(A, slots=4, busy=1), held=LOADING, hot=A)
    decision = auto(request(), state, NOW_S)
    assert isinstance(decision, Wait)
    assert decision.reason is Reason.QUEUE_MEMORY


def test_loads_in_progress_count_as_taken_room() -> None:
    state = full(
        PodSketch(A, "warm", busy=1), PodSketch(B), PodSketch(C, used_bytes=0), held=LOADING, hot=B
    )
    decision = auto(request(lost_s=9.0), state, NOW_S)
    assert isinstance(decision, SendTo)
    assert decision.entry == C


@pytest.mark.parametrize(
    ("depth", "behind", "waited_s", "is_sent"),
    [
        pytest.param(0, 0, 0.0, False, id="the-victim-is-asked-for-more-often"),
        pytest.param(0, 0, 1.2, True, id="nobody-waits-for-the-victim-after-a-load"),
        pytest.param(0, 9, 0.0, True, id="as-many-wait-as-ask-for-the-victim"),
        pytest.param(20, 0, 0.0, False, id="others-wait-for-the-victim"),
        pytest.param(20, 9, 0.0, True, id="more-wait-for-this-one"),
        pytest.param(20, 0, 11.1, True, id="waited-for-ten-loads"),
    ],
)
def test_a_first_copy_waits_until_requests_queued_for_its_victim_are_served(
    depth: int, behind: int, waited_s: float, is_sent: bool
) -> None:
    state = full(PodSketch(A, slots=3), hot=A)
    state.pods[A].estimates.add("default/hot@0", "infer", [0.1])
    for name in ("hot", "hot-too"):
        if depth:
            state.queue_depths[f"default/{name}@0"] = depth
    decision = auto(request(behind=behind, arrival_s=NOW_S - waited_s), state, NOW_S)
    assert isinstance(decision, SendTo) is is_sent
    if isinstance(decision, Wait):
        assert decision.reason is Reason.QUEUE_MEMORY


@pytest.mark.parametrize(
    ("depth", "stalled_s", "is_sent"),
    [
        pytest.param(0, 0.5, False, id="they-still-gather"),
        pytest.param(0, 1.2, True, id="they-have-gathered"),
        pytest.param(20, 10.5, False, id="others-wait-for-the-victim"),
        pytest.param(20, 11.1, True, id="they-waited-for-ten-loads"),
    ],
)
def test_a_new_request_that_comes_before_waiting_ones_counts_their_time(
    depth: int, stalled_s: float, is_sent: bool
) -> None:
    state = full(PodSketch(A, slots=3), hot=A)
    state.pods[A].estimates.add("default/hot@0", "infer", [0.1])
    for name in ("hot", "hot-too"):
        if depth:
            state.queue_depths[f"default/{name}@0"] = depth
    assert isinstance(auto(request(stalled_s=stalled_s), state, NOW_S), SendTo) is is_sent


@pytest.mark.parametrize(
    ("fields", "is_sent"),
    [
        pytest.param({}, False, id="others-may-come"),
        pytest.param({"arrival_s": NOW_S - 0.5}, True, id="waited-long-enough"),
        pytest.param({"deadline_s": NOW_S + 1.2}, True, id="would-be-late-by-it"),
        pytest.param({"deadline_s": NOW_S + 9.0}, False, id="has-the-time"),
    ],
)
def test_requests_gather_before_a_load_that_evicts(fields: dict[str, float], is_sent: bool) -> None:
    state = full(PodSketch(A, slots=3), cold=A)
    decision = auto(request(max_load_wait_s=0.5, **fields), state, NOW_S)
    assert isinstance(decision, SendTo) is is_sent


@pytest.mark.parametrize(
    ("deadline_s", "is_sent"),
    [
        pytest.param(2.1, True, id="would-be-late-by-it"),
        pytest.param(2.3, False, id="has-the-time"),
    ],
)
def test_a_load_does_not_wait_for_its_victims_requests_beyond_the_deadline(
    deadline_s: float, is_sent: bool
) -> None:
    state = full(PodSketch(A, slots=3), hot=A)
    decision = auto(request(deadline_s=NOW_S + deadline_s), state, NOW_S)
    assert isinstance(decision, SendTo) is is_sent


def test_requests_do_not_gather_before_a_load_into_free_room() -> None:
    state = full(PodSketch(A, slots=3), PodSketch(B), hot=A)
    assert isinstance(auto(request(max_load_wait_s=0.5), state, NOW_S), SendTo)


def test_a_first_copy_evicts_where_nobody_waits() -> None:
    state = full(PodSketch(A, slots=9), PodSketch(B, slots=9), cold=A, hot=B)
    for name in ("cold", "cold-too"):
        state.queue_depths[f"default/{name}@0"] = 50
    decision = auto(request(arrival_s=NOW_S - 1.2), state, NOW_S)
    assert isinstance(decision, SendTo)
    assert decision.entry == B


def test_a_first_copy_leaves_time_to_queued_and_expected_requests() -> None:
    state = cluster(PodSketch(A), measured=MEASURED)
    [alone] = decision_options(auto(request(), state, NOW_S))
    [before_two] = decision_options(auto(request(behind=2), state, NOW_S))
    assert alone.leaves_s == 0.0
    assert before_two.leaves_s == pytest.approx(-1.6)
    for n in reversed(range(60)):
        state.arrivals.record(KEY, NOW_S - n)
    [expected] = decision_options(auto(request(), state, NOW_S + 2.0))
    assert expected.leaves_s == pytest.approx(-0.8 * (1 + 0.8 / 2), rel=0.1)


def test_a_further_copy_serves_what_arrives_while_it_loads() -> None:
    state = full(PodSketch(A, "warm", busy=1), PodSketch(B), hot=B)
    queued = request(behind=9, queued=10)
    few = cold_start(queued, state, state.warm(KEY), (), NOW_S)
    for n in range(120):
        state.arrivals.record(KEY, NOW_S - 60 + n / 2)
    many = cold_start(queued, state, state.warm(KEY), (), NOW_S + 2.0)
    assert few is not None
    assert many is not None
    assert many.leaves_s < few.leaves_s


def test_no_further_copy_if_what_it_evicts_is_worth_more() -> None:
    state = full(PodSketch(A, "warm", busy=1), PodSketch(B, slots=9), hot=B)
    decision = auto(request(lost_s=9.0), state, NOW_S)
    assert not (isinstance(decision, SendTo) and decision.mode is LOAD)
    cold = cold_start(request(lost_s=9.0), state, state.warm(KEY), (), NOW_S)
    assert cold is not None
    assert cold.evicts_s > 1.0
    assert cold.credit_s == 0.0


def test_a_further_copy_evicts_what_hardly_anybody_wants() -> None:
    slow = {**MEASURED, "infer": 5.0}
    state = full(PodSketch(A, "warm", busy=1), PodSketch(B, slots=9), cold=B)
    state.pods[A].estimates.add(KEY, "infer", [slow["infer"]] * 9)
    decision = auto(request(), state, NOW_S)
    assert isinstance(decision, SendTo)
    assert (decision.entry, decision.mode) == (B, LOAD)


def test_no_further_copy_on_times_that_were_never_measured() -> None:
    decision = decide(PodSketch(A, "warm", busy=1), PodSketch(B), measured={"infer": 50.0})
    assert not (isinstance(decision, SendTo) and decision.mode is LOAD)


def test_no_proxying_to_a_pod_that_still_loads_the_model() -> None:
    decision = decide(PodSketch(A, "loading:remote", busy=1), PodSketch(B))
    assert [option.name for option in decision_options(decision)] == ["queue", "cold start"]


def test_proxying_pays_for_the_slot_that_queued_requests_wait_for() -> None:
    times = {**MEASURED, "network": 0.2}
    state = cluster(PodSketch(A, "warm", busy=1), PodSketch(B), measured=times)
    for queued, delays_s in ((0, 0.0), (8, 0.2 * 8 / 2)):
        decision = auto(request(queued=queued), state, NOW_S)
        [proxy] = [each for each in decision_options(decision) if each.name == "proxy"]
        assert proxy.delays_s >= delays_s
        assert bool(proxy.delays_s) is bool(queued)


def test_a_load_pays_for_the_requests_that_its_slot_delays() -> None:
    slow = full(PodSketch(A, "warm", busy=1), PodSketch(B, slots=1), cold=B)
    wide = full(PodSketch(A, "warm", busy=1), PodSketch(B, slots=9), cold=B)
    slow_s, wide_s = (
        cold_start(request(), state, state.warm(KEY), (), NOW_S) for state in (slow, wide)
    )
    assert slow_s is not None
    assert wide_s is not None
    assert slow_s.delays_s > wide_s.delays_s
