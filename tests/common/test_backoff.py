from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from common.backoff import MAX_S, Backoff, KeyedBackoff


def test_pauses_double_up_to_the_maximum() -> None:
    backoff = Backoff(initial_s=0.5, max_s=3)
    assert [backoff.pause_s(failures) for failures in range(1, 6)] == [0.5, 1, 2, 3, 3]
    assert backoff.pause_s(100_000) == 3


def test_pauses_of_a_key_double_up_to_the_maximum() -> None:
    backoff = KeyedBackoff()
    assert [backoff.failed("pod", 0.0) for _ in range(11)][:4] == [1, 2, 4, 8]
    assert backoff.failed("pod", 0.0) == MAX_S


def test_a_success_resets_the_pause() -> None:
    backoff = KeyedBackoff()
    for _ in range(5):
        backoff.failed("pod", 0.0)
    backoff.succeeded("pod")
    assert not backoff.is_paused("pod", 0.0)
    assert backoff.failed("pod", 0.0) == 1


def test_a_failure_long_after_the_last_pause_counts_as_the_first() -> None:
    backoff = KeyedBackoff(Backoff(initial_s=0.25, max_s=30.0), fades_s=30.0)
    ends_s = [0.0]
    for _ in range(5):
        ends_s.append(ends_s[-1] + backoff.failed("pod", ends_s[-1]) + 29.0)
    pauses = [end - begin - 29.0 for begin, end in pairwise(ends_s)]
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert backoff.failed("pod", ends_s[-1] + 2.0) == 0.25


@given(
    start_s=st.floats(0, 2e9),
    jump_s=st.floats(-1e9, 1e9),
    times=st.integers(min_value=1, max_value=30),
)
def test_no_pause_exceeds_the_maximum(start_s: float, jump_s: float, times: int) -> None:
    backoff = KeyedBackoff()
    for _ in range(times):
        backoff.failed("pod", start_s)
    later_s = start_s + MAX_S + 1
    assert not backoff.is_paused("pod", later_s)
    if jump_s < 0:  # the clock was set back
        assert not backoff.is_paused("pod", start_s + jump_s - 1)
