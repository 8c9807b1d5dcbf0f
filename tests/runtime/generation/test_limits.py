"""Shares of a device's time for concurrent generations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.generation.limits import ProcessorSharing


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_each_of_n_uses_one_nth_of_the_time() -> None:
    clock = Clock()
    shared = ProcessorSharing(clock)
    with shared.measure() as first:
        clock.now_s += 4
        with shared.measure() as second:
            clock.now_s += 6
        clock.now_s += 1
    assert (first.seconds, second.seconds) == pytest.approx((4 + 3 + 1, 3))


def test_idle_time_belongs_to_no_share() -> None:
    clock = Clock()
    shared = ProcessorSharing(clock)
    for _ in range(2):
        clock.now_s += 50
        with shared.measure() as share:
            clock.now_s += 2
        assert share.seconds == pytest.approx(2)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 5)), max_size=40))
def test_shares_add_up_to_the_busy_time(steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    shared = ProcessorSharing(clock)
    marks: list[float] = []
    busy_s = taken_s = 0.0
    for passed_s, wanted in steps:
        clock.now_s += passed_s
        busy_s += passed_s if marks else 0.0
        while len(marks) < wanted:
            marks.append(shared.enter())
        while len(marks) > wanted:
            taken_s += shared.leave(marks.pop(0))
    taken_s += sum(shared.leave(mark_s) for mark_s in marks)
    assert taken_s == pytest.approx(busy_s, abs=1e-6)
