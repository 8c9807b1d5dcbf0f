"""What is left of placed requests: the device's backlog and the slots' ends."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.domain.pod_state import PlacedRequest, PodWork
from tests.registry.domain.test_device_work import times_of

NOW_S = 1_000.0
DUE_S = NOW_S + 60.0
HEAVY, LIGHT = "default/heavy@0", "default/light@0"


def place(work: PodWork, key: str, share_s: float, **times: Any) -> PlacedRequest:
    known = {
        "placed_s": NOW_S,
        "due_s": DUE_S,
        "ready_s": NOW_S,
        "start_s": NOW_S,
        "infer_s": share_s,
        "after_s": 0.0,
        "is_measured": True,
        "entry": work,
        "predict": work,
    }
    placed = PlacedRequest(key, share_s=share_s, **{**known, **times})
    work.add(placed, times_of(share_s, 0.0))
    return placed


def free_s(work: PodWork, key: str = LIGHT, **fields: Any) -> float:
    known = {
        "due_s": DUE_S + 1.0,
        "ready_in_s": 0.0,
        "inferring": len(work.inferences),
        "now_s": NOW_S,
        "times": times_of(0.01, 0.0),
    }
    return work.backlog(key, **{**known, **fields}).free_s


def test_every_request_takes_its_own_time() -> None:
    work = PodWork()
    place(work, HEAVY, 0.5)
    place(work, LIGHT, 0.01, start_s=NOW_S + 0.5)
    assert free_s(work) == pytest.approx(0.51)


def test_time_that_has_passed_is_not_counted_again() -> None:
    work = PodWork()
    place(work, HEAVY, 0.5)
    assert free_s(work, now_s=NOW_S + 0.4) == pytest.approx(0.1)


def test_an_inference_that_ended_early_counts_as_ended() -> None:
    work = PodWork()
    first = place(work, HEAVY, 0.5)
    place(work, LIGHT, 0.01, start_s=NOW_S + 0.5)
    assert free_s(work, inferring=1) == pytest.approx(0.01)
    first.end()
    assert free_s(work) == pytest.approx(0.01)


def test_requests_behind_a_late_inference_still_count() -> None:
    work = PodWork()
    place(work, LIGHT, 0.01)
    place(work, HEAVY, 0.5, start_s=NOW_S + 0.01)
    assert free_s(work, now_s=NOW_S + 0.4) >= 0.5


def test_requests_that_are_due_later_and_wait_are_overtaken() -> None:
    work = PodWork()
    place(work, LIGHT, 0.01)
    place(work, HEAVY, 0.5, start_s=NOW_S + 0.01)
    assert free_s(work, due_s=NOW_S + 0.9) == pytest.approx(0.01)


def test_other_tenants_have_as_much_of_the_device_as_its_own_whatever_is_due_when() -> None:
    work = PodWork()
    place(work, LIGHT, 0.01)
    place(work, "a/m@0", 0.5, start_s=NOW_S + 0.01)
    place(work, "b/m@0", 0.02, start_s=NOW_S + 0.51)
    assert free_s(work, due_s=NOW_S + 0.9, times=times_of(0.1, 0.0)) == pytest.approx(
        0.01 + 0.1 + 0.02
    )


def test_requests_that_wait_for_a_load_do_not_hold_up_other_models() -> None:
    work = PodWork()
    place(work, HEAVY, 0.5, ready_s=NOW_S + 3.0, start_s=NOW_S + 3.0)
    assert free_s(work) == 0.0
    assert free_s(work, HEAVY, ready_in_s=3.0) == pytest.approx(3.5)


def test_requests_on_the_network_come_before_one_that_arrives_after_them() -> None:
    work = PodWork()
    place(work, LIGHT, 1.0, ready_s=NOW_S + 2.0, start_s=NOW_S + 2.0)
    assert free_s(work, ready_in_s=2.5) == pytest.approx(3.0)


def test_a_request_joins_the_batch_of_those_of_its_model_that_wait() -> None:
    work = PodWork()
    for place_in_line in range(4):
        place(work, LIGHT, 0.1, start_s=NOW_S + 0.1 * place_in_line, infer_s=0.4)
    assert free_s(work, HEAVY) == pytest.approx(0.4)
    assert free_s(work, LIGHT, times=times_of(0.4, 0.3)) == pytest.approx(0.1)


@given(
    jump_s=st.floats(-1e6, 1e6),
    shares_s=st.lists(st.floats(0.001, 10.0), max_size=6),
    inferring=st.integers(0, 8),
    ready_in_s=st.floats(0.0, 5.0),
)
def test_after_a_clock_jump_no_time_is_negative_or_longer_than_at_first(
    jump_s: float, shares_s: list[float], inferring: int, ready_in_s: float
) -> None:
    work = PodWork()
    start_s = NOW_S
    for share_s in shares_s:
        place(work, HEAVY, share_s, start_s=start_s)
        start_s += share_s
    whole_s = sum(shares_s)
    now_s = NOW_S + jump_s
    found = free_s(work, now_s=now_s, inferring=inferring, ready_in_s=ready_in_s)
    assert 0.0 <= found <= whole_s * 1.000001
    slots_s = work.slots_left_s(LIGHT, taken=8, ended=0, load_s=0.0, now_s=now_s)
    assert all(0.0 <= each <= whole_s * 1.000001 for each in slots_s)
