"""Bounded arrival counts: rolling bins, jumps of the clock, invalid input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.forecasting.counts import Counts, CountsParams
from autoscaler.forecasting.history import NEVER

SMALL = CountsParams(seconds=20, minutes=10, ten_minutes=4, active_minutes=3, models=4)
START = 1_000_000 * 60.0


def _counts(params: CountsParams = SMALL, at: float = START) -> Counts:
    counts = Counts(params)
    counts.advance(at)
    return counts


def test_counts_by_second_minute_and_ten_minutes() -> None:
    counts = _counts()
    counts.advance(START + 125)
    counts.add(["a", "a", "b"], [START + 10, START + 124, START + 125], [1, 2, 3])
    history = counts.history(START + 180)
    assert counts.names == ["a", "b"]
    assert history.minutes[:, -3:].tolist() == [[1, 0, 2], [0, 0, 3]]
    assert history.active_minutes.tolist() == [
        [NEVER, START // 60, START // 60 + 2],
        [NEVER, NEVER, START // 60 + 2],
    ]
    later = counts.history(START + 1200)
    assert later.ten_minutes[:, -2:].sum(axis=1).tolist() == [3, 3]


def test_the_current_minute_is_in_recent_only() -> None:
    counts = _counts(CountsParams())
    counts.advance(START + 30)
    counts.add(["a", "a", "a"], [START + 20, START - 20, START - 31], [5, 6, 7])
    history = counts.history(START + 30)
    assert history.recent.tolist() == [11]
    assert history.minutes[0, -1] == 13
    assert counts.recent_seconds()[0, -11] == 5


def test_a_week_without_arrivals_clears_the_counts() -> None:
    counts = _counts()
    counts.add(["a"], [START], [5])
    history = counts.history(START + 7 * 86400)
    assert history.minutes.sum() == 0
    assert history.ten_minutes.sum() == 0
    assert history.age_minutes[0] == pytest.approx(7 * 1440, abs=1)


def test_a_small_step_back_changes_nothing() -> None:
    counts = _counts()
    counts.add(["a"], [START], [5])
    before = counts.history(START + 90)
    after = counts.history(START + 50)
    assert after.origin_s == before.origin_s
    assert (after.minutes == before.minutes).all()


def test_a_clock_set_back_drops_later_arrivals() -> None:
    counts = _counts()
    counts.add(["a"], [START], [5])
    counts.advance(START + 300)
    counts.add(["a"], [START + 300], [7])
    history = counts.history(START + 120)
    assert history.origin_s == START + 120
    assert history.minutes[0].sum() == 5
    assert history.active_minutes[0].tolist() == [NEVER, NEVER, START // 60]
    counts.add(["a"], [START + 110], [2])
    assert counts.history(START + 360).minutes[0].sum() == 7


def test_drops_invalid_counts_and_times() -> None:
    counts = _counts()
    times_s = [START + 6, START - 86400, float("nan"), START, START, START, START]
    counts.add(["a"] * 7, times_s, [1, 2, 1, -1, 0, 10**9 + 1, 4])
    assert counts.recent_seconds()[0].tolist() == [0] * 19 + [4]
    assert counts.history(START + 60).ten_minutes.sum() == 0


def test_at_the_limit_the_longest_idle_model_is_replaced() -> None:
    counts = _counts()
    for at, name in enumerate("abcd"):
        counts.advance(START + 60 * at)
        counts.add([name], [START + 60 * at], [1])
    counts.add(["a"], [START + 180], [1])
    counts.add(["e"], [START + 180], [9])
    assert sorted(counts.names) == ["a", "c", "d", "e"]
    history = counts.history(START + 240)
    assert history.minutes[counts.names.index("e")].sum() == 9


def test_more_new_models_than_rows_keep_counts_apart() -> None:
    counts = _counts()
    names = [f"m{index}" for index in range(9)]
    counts.add(names, [START] * 9, list(range(1, 10)))
    history = counts.history(START + 60)
    found = {name: int(history.minutes[row].sum()) for row, name in enumerate(counts.names)}
    assert len(found) == 4
    assert all(found[name] == int(name[1:]) + 1 for name in found)


def test_removing_a_model_moves_the_last_row() -> None:
    counts = _counts()
    counts.add(["a", "b", "c"], [START] * 3, [1, 2, 3])
    counts.remove_model("a")
    counts.remove_model("nobody")
    assert counts.names == ["c", "b"]
    assert counts.history(START + 60).minutes.sum(axis=1).tolist() == [3, 2]
    counts.add(["d"], [START + 60], [4])
    assert counts.history(START + 120).minutes.sum(axis=1).tolist() == [3, 2, 4]


def test_memory_per_model() -> None:
    counts = Counts(CountsParams(models=64))
    counts.advance(START)
    counts.add([f"m{index}" for index in range(500)], [START] * 500, [1] * 500)
    assert len(counts.names) == 64
    assert counts.memory_bytes / 64 == 21_226


def test_counters_saturate() -> None:
    counts = _counts()
    counts.add(["a", "a"], [START, START], [10**9, 10**9])
    assert counts.recent_seconds()[0, -1] == 65_535
    assert counts.history(START + 60).minutes[0, -1] == 2 * 10**9


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(-400, 1500), st.integers(0, 700), st.integers(1, 9)), max_size=25
    )
)
def test_counts_equal_a_list_of_arrivals_within_the_kept_time(
    steps: list[tuple[int, int, int]],
) -> None:
    counts, now, kept = _counts(), START, list[tuple[float, int]]()
    for jump, age, number in steps:
        target = max(now + jump, START - 3000)
        counts.advance(target)
        if target < now - SMALL.step_back_s or target > now:
            kept = [(at, each) for at, each in kept if at // 60 <= target // 60 or target > now]
            kept = [(at, each) for at, each in kept if target // 60 - SMALL.minutes <= at // 60]
            now = target
        counts.add(["a"], [now - age], [number])
        if now // 60 - SMALL.minutes <= (now - age) // 60:
            kept.append((now - age, number))
    expected = np.zeros(SMALL.minutes)
    for at, number in kept:
        back = int(now // 60 - 1 - at // 60)
        if 0 <= back < SMALL.minutes:
            expected[SMALL.minutes - 1 - back] += number
    if counts.names:
        assert counts.history(now).minutes[0].tolist() == expected.tolist()
