"""Which evaluations are refused after one was killed."""

from __future__ import annotations

from runtime.sandbox.refusals import PAUSE_S, Refusals


def test_a_kill_by_a_short_input_refuses_all() -> None:
    refusals = Refusals()
    assert refusals.refused_s(10, 0.0) == 0.0
    refusals.record(10, 0.0)
    assert refusals.refused_s(0, 1.0) == PAUSE_S - 1
    assert refusals.refused_s(10**6, PAUSE_S) == 0.0


def test_a_kill_by_a_huge_input_leaves_usual_ones() -> None:
    refusals = Refusals()
    refusals.record(10**6, 0.0)
    assert refusals.refused_s(249_999, 1.0) == 0.0
    assert refusals.refused_s(250_000, 1.0) > 0


def test_a_template_that_never_ends_is_refused_after_few_kills() -> None:
    refusals, now_s, kills = Refusals(), 0.0, 0
    size = 4 * 10**6
    while size:
        if not refusals.refused_s(size, now_s):
            refusals.record(size, now_s)
            kills += 1
        now_s += 1
        size = min(size - 1, (refusals.from_bytes or 1) - 1)
    assert kills <= 7


def test_a_later_longer_kill_does_not_admit_shorter_ones() -> None:
    refusals = Refusals()
    refusals.record(10_000, 0.0)
    refusals.record(10**6, 1.0)
    assert refusals.refused_s(5000, 2.0) > 0
