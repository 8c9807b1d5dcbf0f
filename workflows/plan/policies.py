"""The scheduling policies of workflows by name, and placing steps in the order of their calls."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from math import inf

from workflows.plan.problem import (
    Placement,
    Schedule,
    SchedulingProblem,
    SchedulingProblemError,
    dependents,
    end_of_step,
)


def place_in_call_order(
    problem: SchedulingProblem, choose: Callable[[Sequence[Placement]], Placement]
) -> Schedule:
    """Let `choose` pick among the devices that can run each step, given by device name.

    Raises SchedulingProblemError for a step that no device can run.
    """
    placements = dict(problem.placed)
    busy_until_s: dict[int, float] = {}
    loaded: set[tuple[int, str]] = set()
    by_name = devices_by_name(problem)
    dependents(problem.steps)  # refuses inputs that come later
    order = [step for step in range(len(problem.steps)) if step not in problem.placed]
    for step in order:
        model = problem.steps[step].model
        options = []
        for device in by_name:
            start_s, end_s = end_of_step(
                problem,
                step,
                device,
                ready_s=_ready_s(problem, step, device, placements),
                busy_until_s=busy_until_s.get(device, 0.0),
                is_loaded=(device, model) in loaded,
            )
            if end_s < inf:
                options.append(Placement(device, start_s, end_s))
        if not options:
            raise SchedulingProblemError(f"no device can run step {step} ({model})")
        chosen = placements[step] = choose(options)
        busy_until_s[chosen.device] = chosen.end_s
        loaded.add((chosen.device, model))
    return Schedule(tuple(placements[step] for step in range(len(problem.steps))), tuple(order))


def devices_by_name(problem: SchedulingProblem) -> list[int]:
    return sorted(range(len(problem.devices)), key=problem.devices.__getitem__)


def _ready_s(
    problem: SchedulingProblem, step: int, device: int, placements: Mapping[int, Placement]
) -> float:
    """When the outputs of all inputs are on the device (equation 2)."""
    latest_s = 0.0
    for source in problem.steps[step].inputs:
        at = placements[source]
        moved_s = at.end_s
        if at.device != device:
            moved_s += problem.transfer_s(source, step, at.device, device)
        latest_s = max(latest_s, moved_s)
    return latest_s


def greedy(problem: SchedulingProblem) -> Schedule:
    """Place the steps as called; ties go to the first device by name.

    Raises SchedulingProblemError for a step that no device can run.
    """
    return place_in_call_order(
        problem, lambda options: min(options, key=lambda option: option.end_s)
    )


class SchedulingPolicy(StrEnum):
    """Who places a run's steps, and when."""

    SPECULATIVE = "speculative"
    """All steps of the run together, those that are predicted included."""
    GREEDY = "greedy"
    """Each step when its inputs are there, on the pod where it ends earliest."""
    AUTO = "auto"
    """Each step is an ordinary request, which the gateway routes."""


def parse_scheduling(text: str) -> str:
    """A policy's name. Raises ValueError."""
    if text not in list(SchedulingPolicy):
        raise ValueError(f"must be one of {', '.join(SchedulingPolicy)}, was {text[:40]!r}")
    return text
