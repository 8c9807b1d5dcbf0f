"""What plans announce to the autoscaler: the next steps of all runs, by model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class PlannedArrival:
    """A step that is planned and not sent."""

    model: str
    probability: float
    start_s: float


@dataclass(frozen=True, slots=True)
class AnnouncedModel:
    """All planned steps of one model."""

    model: str
    probability: float
    """That at least one of them comes; as if they were independent."""
    until_s: float
    count: float
    """Expected steps, if any comes."""


def announcements(steps: Iterable[PlannedArrival]) -> list[AnnouncedModel]:
    """By model, in order of names."""
    by_model: dict[str, list[PlannedArrival]] = {}
    for step in steps:
        if step.probability > 0:
            by_model.setdefault(step.model, []).append(step)
    found = []
    for model, planned in sorted(by_model.items()):
        none = 1.0
        for step in planned:
            none *= 1.0 - step.probability
        some = max(1.0 - none, *(step.probability for step in planned))
        expected = sum(step.probability for step in planned)
        found.append(
            AnnouncedModel(
                model, some, max(step.start_s for step in planned), max(1.0, expected / some)
            )
        )  # fmt: skip
    return found
