"""The scheduling policies of workflows by name, and placing steps in the order of their calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import inf
from typing import Any, Final, TypeAlias

from registry.policy_names import PolicyNames
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
    order = _call_order(problem)
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


def _call_order(problem: SchedulingProblem) -> list[int]:
    """The steps not yet placed, each after its inputs, otherwise as called."""
    dependents(problem.steps)  # refuses circles
    done = set(problem.placed)
    waiting = [step for step in range(len(problem.steps)) if step not in done]
    order: list[int] = []
    while waiting:
        step = next(step for step in waiting if done.issuperset(problem.steps[step].inputs))
        waiting.remove(step)
        done.add(step)
        order.append(step)
    return order


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


StepPolicy: TypeAlias = Callable[[SchedulingProblem, int], Schedule]
"""Places the last step of a problem, whose inputs have their places. The number: the position after
that of the device which the policy chose last."""


class SchedulingPolicy(StrEnum):
    """Who places a run's steps, and when."""

    SPECULATIVE = "speculative"
    """All steps of the run together, those that are predicted included."""
    GREEDY = "greedy"
    """Each step when its inputs are there, on the pod where it ends earliest."""
    AUTO = "auto"
    """Each step is an ordinary request, which the gateway routes."""


@dataclass(frozen=True, slots=True)
class StatefulPolicy:
    """A plug-in that keeps more than a turn, such as copies of models that it loads."""

    live: Callable[..., Any]
    """From `PodQueues` and `Preloads` to a `workflows.plan.planner.StepPlacement`."""
    simulated: Callable[..., Any]
    """From a `WorkflowSimulation` to a `Placer` of the simulator."""


SCHEDULING: Final = PolicyNames("pilotlight.workflows", SchedulingPolicy)


@cache
def step_policy(name: str) -> StepPolicy:
    """`greedy`, or a plug-in that is a function.

    Whatever foreign code does, it raises SchedulingProblemError only.
    """
    if name in list(SchedulingPolicy):
        return lambda problem, _turn: greedy(problem)

    def checked(problem: SchedulingProblem, turn: int) -> Schedule:
        try:
            schedule: Schedule = SCHEDULING.load(name)(problem, turn)
            problem.devices[schedule.placements[-1].device]
        except SchedulingProblemError:
            raise
        except Exception as error:
            raise SchedulingProblemError(
                f"scheduling policy {name}: {type(error).__name__}: {error}"
            ) from error
        return schedule

    return checked


def stateful_policy(name: str) -> StatefulPolicy | None:
    """None: the policy is built in, or a function. Raises PluginError."""
    found = None if name in list(SchedulingPolicy) else SCHEDULING.load(name)
    return found if isinstance(found, StatefulPolicy) else None
