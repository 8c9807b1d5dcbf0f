"""Planned steps of one model add up to one announcement."""

import pytest

from registry.domain.demand import ArrivalHint
from registry.domain.model import ModelName
from workflows.plan.planner import PlannedStep, announced_arrivals


def _announced(*steps: tuple[str, float, float]) -> list[ArrivalHint]:
    """Of steps of a model, with a probability and a start."""
    return announced_arrivals(
        (ModelName("default", model), PlannedStep(model, (), "p", start_s, start_s, probability))
        for model, probability, start_s in steps
    )


def test_steps_of_a_model_are_counted_as_independent() -> None:
    first, second = _announced(("b", 0.5, 3.0), ("a", 1.0, 9.0), ("b", 0.5, 7.0))
    assert first == ArrivalHint(ModelName("default", "a"), 1.0, 9.0, 1.0)
    assert (second.model.name, second.probability, second.until_s) == ("b", 0.75, 7.0)
    assert second.count == pytest.approx(4 / 3)


def test_a_step_that_hardly_ever_comes_is_one_step() -> None:
    [found] = _announced(("a", 1e-20, 1.0))
    assert (found.probability, found.count) == (1e-20, 1.0)


def test_steps_that_never_come_are_not_announced() -> None:
    assert _announced(("a", 0.0, 1.0)) == []
