"""Planned steps of one model add up to one announcement."""

from __future__ import annotations

import pytest

from workflows.scheduling.announcements import AnnouncedModel, PlannedArrival, announcements


def test_steps_of_a_model_are_counted_as_independent() -> None:
    steps = [PlannedArrival("b", 0.5, 3.0), PlannedArrival("a", 1.0, 9.0),
             PlannedArrival("b", 0.5, 7.0)]  # fmt: skip
    first, second = announcements(steps)
    assert first == AnnouncedModel("a", 1.0, 9.0, 1.0)
    assert (second.model, second.probability, second.until_s) == ("b", 0.75, 7.0)
    assert second.count == pytest.approx(4 / 3)


def test_a_step_that_hardly_ever_comes_is_one_step() -> None:
    [found] = announcements([PlannedArrival("a", 1e-20, 1.0)])
    assert (found.probability, found.count) == (1e-20, 1.0)


def test_steps_that_never_come_are_not_announced() -> None:
    assert announcements([PlannedArrival("a", 0.0, 1.0)]) == []
