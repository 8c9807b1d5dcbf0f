"""Retries: their budget and number, the refusals that lead to one, requests that lose pods."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.retries import (
    MAX_ATTEMPTS,
    PAUSE_S,
    TRIAL_S,
    FailedAttempts,
    NotExecuted,
    OutlierDetection,
    RequestQuarantine,
    Retries,
    RetryBudget,
    refusal_to_retry,
)
from gateway.errors import RequestLostPods
from load.simulator.event_queue import EventQueue
from registry.domain.cluster import ClusterState
from tests.gateway.cluster_states import PodSketch, cluster

PATH, BODY, SIZE = b"/v1/models/m:predict", (b"{}",), 2


def test_the_budget_is_spent_and_earned() -> None:
    budget = RetryBudget(earned_per_request=0.5, max_tokens=2.0, tokens=1.0)
    assert budget.spend()
    assert not budget.spend()
    budget.earn()
    assert not budget.spend()
    budget.earn()
    assert budget.spend()


@given(st.lists(st.booleans(), max_size=300))
def test_retries_never_exceed_the_initial_tokens_and_the_earned_share(requests: list[bool]) -> None:
    budget = RetryBudget(earned_per_request=0.2, max_tokens=10.0, tokens=10.0)
    spent = 0
    for is_failing in requests:
        budget.earn()
        spent += is_failing and budget.spend()
    assert spent <= 10.0 + 0.2 * len(requests)
    assert 0 <= budget.tokens <= 10.0


@pytest.mark.parametrize(
    ("tokens", "is_free", "attempts", "error"),
    [
        pytest.param(2.0, False, 3, "retry budget is spent", id="budget"),
        pytest.param(0.0, True, MAX_ATTEMPTS, "10 attempts", id="free"),
        pytest.param(100.0, False, MAX_ATTEMPTS, "10 attempts", id="attempts"),
    ],
)
def test_attempts_end(tokens: float, is_free: bool, attempts: int, error: str) -> None:
    retries = Retries(OutlierDetection(EventQueue(), lambda: None), ClusterState())
    retries.budget.tokens = tokens
    failed = FailedAttempts()
    found = None
    while found is None:
        found = retries.take_retry(failed, NotExecuted.SLOTS, is_free=is_free)
    assert error in found
    assert failed.total == attempts


@pytest.mark.parametrize(
    ("refusal", "was_device_full", "reason"),
    [
        (None, False, None),
        ("no-memory", False, None),
        ("slots", True, NotExecuted.SLOTS),
        ("draining", True, NotExecuted.DRAINING),
        ("unreachable", False, NotExecuted.PREDICT_UNREACHABLE),
        ("device-full", False, NotExecuted.DEVICE_FULL),
        ("device-full", True, None),
    ],
)
def test_refusals_by_the_state_of_a_pod_are_retried(
    refusal: str | None, was_device_full: bool, reason: NotExecuted | None
) -> None:
    full = cluster(PodSketch("pod-a")).pods["pod-a"] if was_device_full else None
    assert refusal_to_retry(refusal, FailedAttempts(full_pod=full)) is reason


def test_a_pod_is_avoided_until_the_last_end_of_its_marks() -> None:
    events = EventQueue()
    recovered_s: list[float] = []
    suspected: list[bool] = []
    health = OutlierDetection(events, lambda: recovered_s.append(events.now_s))
    pod = cluster(PodSketch("pod-a")).pods["pod-a"]
    for at_s in (0.0, 0.4, 0.9):
        events.at(at_s, health.avoid, pod)
    with health.without(pod):
        pass
    events.at(1.899, lambda _: suspected.append(pod.is_suspect))
    events.run_some(100, until=lambda: False)
    assert (suspected, pod.is_suspect) == ([True], False)
    assert recovered_s == pytest.approx([0.0, 1.9])


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_request_whose_second_attempt_loses_a_pod_too_is_refused_for_the_pause() -> None:
    clock = Clock()
    lost = RequestQuarantine(clock)
    lost.record(PATH, BODY, SIZE, pod="a", begun=lost.losses)
    lost.check(PATH, BODY, SIZE)
    with pytest.raises(RequestLostPods):
        lost.record(PATH, BODY, SIZE, pod="b", begun=lost.losses)
    clock.now_s = PAUSE_S - 1
    with pytest.raises(RequestLostPods, match=r"2 pods were lost.* for 1 s"):
        lost.check(PATH, BODY, SIZE)
    clock.now_s = PAUSE_S
    lost.check(PATH, BODY, SIZE)


def lose_two_pods_at_once(lost: RequestQuarantine) -> None:
    begun = lost.losses
    lost.record(PATH, BODY, SIZE, pod="a", begun=begun)
    with pytest.raises(RequestLostPods):
        lost.record(PATH, BODY, SIZE, pod="b", begun=begun)


def test_after_pods_lost_at_once_one_request_is_tried_and_its_response_acquits() -> None:
    clock = Clock()
    lost = RequestQuarantine(clock)
    lose_two_pods_at_once(lost)
    with pytest.raises(RequestLostPods):
        lost.check(PATH, BODY, SIZE)
    clock.now_s = TRIAL_S
    lost.check(PATH, BODY, SIZE)
    with pytest.raises(RequestLostPods):  # while that one runs
        lost.check(PATH, BODY, SIZE)
    lost.acquit(PATH, BODY, SIZE)
    lost.check(PATH, BODY, SIZE)


def test_a_tried_request_that_loses_its_pod_is_refused_for_the_pause() -> None:
    clock = Clock()
    lost = RequestQuarantine(clock)
    lose_two_pods_at_once(lost)
    clock.now_s = TRIAL_S
    lost.check(PATH, BODY, SIZE)
    with pytest.raises(RequestLostPods):
        lost.record(PATH, BODY, SIZE, pod="c", begun=lost.losses)
    clock.now_s += PAUSE_S - 1
    with pytest.raises(RequestLostPods, match="3 pods"):
        lost.check(PATH, BODY, SIZE)
