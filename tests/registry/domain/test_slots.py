"""The default number of slots, by device and profiles."""

from __future__ import annotations

import pytest

from registry.domain.pod import PodInfo
from registry.domain.profile import Profile, ProfilePoint
from registry.domain.slots import MAX_SLOTS, default_slots


def profile(best_rows: int) -> Profile:
    """One whose throughput grows up to this number of rows."""
    points = [ProfilePoint(1, 0.1), ProfilePoint(best_rows, 0.2), ProfilePoint(256, 51.2)]
    return Profile("default~m@1", "CPU", tuple(points))


def test_a_cpu_without_profiles_has_eight_slots_and_a_gpu_more() -> None:
    assert default_slots() == default_slots("cpu") == 8
    assert default_slots("cuda:0") > 8


def test_a_registration_without_slots_has_the_default() -> None:
    assert PodInfo("a", "a:1", "n").slots == default_slots()


@pytest.mark.parametrize(
    ("rows", "slots"),
    [
        pytest.param((2,), 8, id="never fewer than unmeasured"),
        pytest.param((8,), 16, id="one batch runs, the next one is prepared"),
        pytest.param((4, 32, 16), 64, id="the largest of all models"),
        pytest.param((200,), MAX_SLOTS, id="bounded"),
    ],
)
def test_profiles_leave_place_for_two_of_the_best_batches(
    rows: tuple[int, ...], slots: int
) -> None:
    assert default_slots("cpu", [profile(each) for each in rows]) == slots
