"""The scheduling policies of workflows by name; those of plug-ins place one step at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeAlias

from registry.plugins import PolicyNames
from workflows.scheduling.call_order import greedy
from workflows.scheduling.problem import Schedule, SchedulingProblem, SchedulingProblemError

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
    """From `PodQueues` and `Preloads` to a `workflows.service.planner.StepPlacement`."""
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
