"""The retry budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.retries import RetryBudget


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
