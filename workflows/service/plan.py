"""A run's plan: the pods of its steps, known and predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """Where and when a step is to run. Times on the registry's clock."""

    model: str
    """Name within the run's namespace."""
    inputs: tuple[int, ...]
    pod: str
    start_s: float
    end_s: float
    probability: float
    """1 for a known step."""


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[PlannedStep, ...]
    """By position in the run."""
    made_s: float = 0.0
    """On the registry's clock."""
    namespace: str = "default"
    """Of its models."""

    def following_s(self, position: int) -> float:
        """How long the run is expected to go on after the end of a step; 0 for one not planned."""
        if position >= len(self.steps):
            return 0.0
        return max(each.end_s for each in self.steps) - self.steps[position].end_s

    def foresees(self, position: int, model: str, inputs: Sequence[int]) -> bool:
        """Whether the call at `position` is the one that was predicted."""
        if position >= len(self.steps):
            return False
        step = self.steps[position]
        return step.model == model and step.inputs == tuple(inputs)
