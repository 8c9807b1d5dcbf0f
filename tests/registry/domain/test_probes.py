"""Probes take a bounded share of the time, whatever is refused."""

from hypothesis import given
from hypothesis import strategies as st

from registry.domain.pod_state import MAX_MODELS, MAX_PAUSE_S, TIME_SHARE, ProbeBudget

NOW_S = 1_000.0


@given(
    cost_s=st.floats(0.001, MAX_PAUSE_S * TIME_SHARE),
    gaps_s=st.lists(st.floats(0.0, 4.0), max_size=30),
)
def test_probes_take_at_most_their_share_of_the_time(cost_s: float, gaps_s: list[float]) -> None:
    budget, now_s, spent_s = ProbeBudget(), NOW_S, 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        if budget.is_due("m", now_s):
            budget.spend("m", now_s, cost_s)
            spent_s += cost_s
    assert spent_s <= cost_s + TIME_SHARE * (now_s - NOW_S) + 1e-6


def test_a_first_refusal_is_no_probe_and_slow_models_have_one_each_while() -> None:
    budget = ProbeBudget(1.0)
    assert not budget.is_due("m", NOW_S)
    assert budget.is_due("m", NOW_S + 1.0)
    budget.spend("m", NOW_S, 60.0)
    assert not budget.is_due("m", NOW_S + MAX_PAUSE_S / 2)
    assert budget.is_due("m", NOW_S + MAX_PAUSE_S)
    assert not budget.is_due("another", NOW_S)


def test_a_clock_set_back_ends_a_pause() -> None:
    budget = ProbeBudget()
    budget.spend("m", NOW_S, 60.0)
    assert budget.is_due("m", NOW_S - 3600.0)


def test_it_holds_a_bounded_number_of_models() -> None:
    budget = ProbeBudget(1.0)
    for number in range(MAX_MODELS + 1):
        budget.spend(str(number), NOW_S, 1.0)
    assert not budget.is_due("0", NOW_S)  # forgotten: as for the first time
    assert budget.is_due("0", NOW_S + 1.0)
    assert not budget.is_due(str(MAX_MODELS), NOW_S)
