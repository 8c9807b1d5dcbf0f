"""The retry budget, the number of attempts, and the refusals that are retried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.passive_health import PassiveHealth
from gateway.dispatch.retries import (
    MAX_ATTEMPTS,
    FailedAttempts,
    NotExecuted,
    Retries,
    RetryBudget,
    refusal_to_retry,
)
from load.simulator.event_queue import EventQueue


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
    retries = Retries(PassiveHealth(EventQueue(), lambda: None))
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
    assert refusal_to_retry(refusal, FailedAttempts(was_device_full=was_device_full)) is reason
