from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotlight.platform.supervised_process import RestartBackoff, RestartBackoffParams, after_death

PARAMS = RestartBackoffParams(first_s=0.25, max_s=30.0, healthy_after_s=30.0)


def test_doubles_with_each_death_in_a_row() -> None:
    state, delays = RestartBackoff(), []
    for _ in range(4):
        state, delay_s = after_death(state, ran_s=0.1, params=PARAMS)
        delays.append(delay_s)
    assert delays == [0.25, 0.5, 1.0, 2.0]


def test_begins_anew_after_a_healthy_run() -> None:
    _, delay_s = after_death(RestartBackoff(deaths=7), ran_s=31.0, params=PARAMS)
    assert delay_s == 0.25


@given(st.lists(st.floats(0, 29), min_size=1, max_size=200))
def test_never_waits_longer_than_the_longest_and_never_less_than_before(runs: list[float]) -> None:
    state, before_s = RestartBackoff(), 0.0
    for ran_s in runs:
        state, delay_s = after_death(state, ran_s=ran_s, params=PARAMS)
        assert before_s <= delay_s <= PARAMS.max_s
        before_s = delay_s
