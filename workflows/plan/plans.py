"""A run's plan: the pods of its steps, known and predicted; explained, and announced. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Final

from registry.domain.demand import ArrivalHint
from registry.domain.model import ModelName
from workflows.plan.problem import SchedulingProblem


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


MAX_CANDIDATES: Final = 6
"""Devices shown of each step: those where it would end earliest by itself."""


def plan_document(
    plan: Plan, problem: SchedulingProblem, *, begun_s: float, known: int, exact: bool
) -> Mapping[str, object]:
    """With times in seconds since the run began at `begun_s`; `known`: steps called so far."""
    return {
        "at_s": round(plan.made_s - begun_s, 6),
        "known": known,
        "exact": exact,
        "steps": [
            {
                "model": step.model,
                "inputs": step.inputs,
                "pod": step.pod,
                "start_s": round(step.start_s - begun_s, 6),
                "end_s": round(step.end_s - begun_s, 6),
                "probability": round(step.probability, 4),
                "candidates": _candidates(problem, number) if number >= known else [],
            }
            for number, step in enumerate(plan.steps)
        ],
    }


def _candidates(problem: SchedulingProblem, number: int) -> Sequence[Mapping[str, object]]:
    """Waiting, loading and computing on each device, in seconds from the plan."""
    costs = zip(
        problem.devices,
        problem.free_s[number],
        problem.load_s[number],
        problem.compute_s[number],
        strict=True,
    )
    found = [
        (max(free_s, load_s) + compute_s, name, free_s, load_s, compute_s)
        for name, free_s, load_s, compute_s in costs
        if max(free_s, load_s) + compute_s < inf
    ]
    return [
        {
            "pod": name,
            "free_s": round(free_s, 6),
            "load_s": round(load_s, 6),
            "compute_s": round(compute_s, 6),
        }
        for _, name, free_s, load_s, compute_s in sorted(found)[:MAX_CANDIDATES]
    ]


def announced_arrivals(planned: Iterable[tuple[ModelName, PlannedStep]]) -> list[ArrivalHint]:
    """What autoscalers are told of steps that are planned and not sent: by model, sorted.

    Probabilities that at least one comes are as if steps were independent.
    """
    by_model: dict[ModelName, list[PlannedStep]] = {}
    for model, step in planned:
        if step.probability > 0:
            by_model.setdefault(model, []).append(step)
    found = []
    for model, steps in sorted(by_model.items(), key=lambda item: str(item[0])):
        none = prod(1.0 - step.probability for step in steps)
        some = max(1.0 - none, *(step.probability for step in steps))
        expected = sum(step.probability for step in steps)
        until_s = max(step.start_s for step in steps)
        found.append(ArrivalHint(model, some, until_s, max(1.0, expected / some)))
    return found
