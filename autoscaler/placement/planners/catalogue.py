"""The planners by name, plug-ins included, with the input that each needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from autoscaler.placement.planners.plan import Plan
from autoscaler.placement.planners.predicted_goodput import predicted_goodput
from autoscaler.placement.planners.problem import (
    AcceleratorView,
    Metric,
    Profiles,
    Workload,
    validate,
)
from registry.domain.model import PlacementName
from registry.domain.policy_names import PLACEMENT
from registry.errors import PluginError

Check: TypeAlias = Callable[[Sequence[Workload], Sequence[AcceleratorView], Profiles], None]


@dataclass(frozen=True, slots=True)
class Planner:
    plan: Plan
    metric: Metric | None = None
    """Measure of compute that it adds up to 100 % of an accelerator; None: it does not."""
    check: Check = validate
    """Raises InvalidPlacementInput if the planner cannot use the input."""


PLANNERS: Final[Mapping[str, Planner]] = {
    PlacementName.PREDICTED_GOODPUT: Planner(predicted_goodput)
}


def planner_names() -> list[str]:
    return [name for name in PLACEMENT if name != PlacementName.OFF]


def planner_of(name: str) -> Planner:
    """The planner of this name. Raises PluginError."""
    if name in PLANNERS:
        return PLANNERS[name]
    found = PLACEMENT.load(name)
    if isinstance(found, Planner):
        return found
    if not callable(found):
        raise PluginError(f"planner {name} must be a function or a Planner, was {found!r}")
    return Planner(found)
