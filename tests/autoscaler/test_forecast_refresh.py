"""Models whose forecast is due, and replaced rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.forecast import MAX_AGE_S, Freshness, due_rows, replace_rows
from autoscaler.policy import NEVER_S
from tests.autoscaler.views import demand

NOW_S = 1e9


def _due(
    ages_s: list[float], silences_s: list[float], changed: list[bool], most: int = 100
) -> list[int]:
    known = Freshness(NOW_S - np.array(ages_s), NOW_S - np.array(silences_s))
    rows: list[int] = due_rows(known, np.array(changed), NOW_S, max_rows=most).tolist()
    return rows


def test_a_model_is_due_after_an_arrival() -> None:
    assert _due([1.0, 1.0], [3600.0, 3600.0], [False, True]) == [1]


def test_a_model_is_due_when_its_idle_time_has_grown_by_a_tenth() -> None:
    assert _due([2.0, 2.0], [15.0, 25.0], [False, False]) == [0]


def test_every_model_is_due_at_the_maximum_age() -> None:
    never = -NEVER_S
    assert _due([MAX_AGE_S, MAX_AGE_S - 1], [never, never], [False, False]) == [0]


def test_a_forecast_from_the_future_is_due() -> None:
    assert _due([-3600.0], [3600.0], [False]) == [0]


def test_the_oldest_forecasts_go_first() -> None:
    assert _due([20.0, 40.0, 30.0, 1.0], [9e9] * 4, [False] * 4, most=2) == [1, 2]


@given(
    ages=st.lists(st.floats(0, 1e4), min_size=1, max_size=30),
    most=st.integers(1, 30),
    pause_s=st.floats(0.5, 5.0),
)
def test_every_model_is_refreshed_within_the_maximum_age(
    ages: list[float], most: int, pause_s: float
) -> None:
    count = len(ages)
    known = Freshness(NOW_S - np.array(ages), np.full(count, NEVER_S))
    rounds = count // most + 2
    now_s = NOW_S
    for _ in range(2 * rounds):
        now_s += MAX_AGE_S / rounds
        rows = due_rows(known, np.ones(count, dtype=bool), now_s, max_rows=most)
        known.forecast_s[rows] = now_s
    assert known.forecast_s.min() > NOW_S


def test_replaces_the_given_rows_only() -> None:
    before, part = demand([0.1, 0.2, 0.3]), demand([0.9])
    after = replace_rows(before, part, np.array([1]))
    assert after.p_minute.tolist() == [0.1, 0.9, 0.3]
    assert before.p_minute.tolist() == [0.1, 0.2, 0.3]
    assert (after.forecast.mean[[0, 2]] == before.forecast.mean[[0, 2]]).all()
    assert (after.forecast.mean[1] == part.forecast.mean[0]).all()
    assert after.history is None
