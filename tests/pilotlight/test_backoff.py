from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotlight.platform.supervised_process import MAX_DELAY_S, RestartBackoff


def test_doubles_with_each_death_in_a_row() -> None:
    backoff = RestartBackoff()
    assert [backoff.next_delay_s(ran_s=0.1) for _ in range(4)] == [0.25, 0.5, 1.0, 2.0]


def test_restarts_the_sequence_after_a_healthy_run() -> None:
    assert RestartBackoff(deaths=7).next_delay_s(ran_s=31.0) == 0.25


@given(st.lists(st.floats(0, 29), min_size=1, max_size=200))
def test_delays_grow_up_to_the_maximum(runs: list[float]) -> None:
    backoff = RestartBackoff()
    delays = [backoff.next_delay_s(ran_s=ran_s) for ran_s in runs]
    assert delays == sorted(delays)
    assert max(delays) <= MAX_DELAY_S
