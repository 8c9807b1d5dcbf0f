"""The fewest accelerators of one kind on which a planner serves every servable model in full.

Source: Elvinger 2024, section 5.2.1, "Non-fixed sized cluster".
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from autoscaler.placement.planners.plan import UNSERVABLE
from autoscaler.placement.planners.problem import AcceleratorView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.placement.planners.plan import Placement, Plan
    from autoscaler.placement.planners.problem import PlanParams, Profiles, Workload

_MAX_ACCELERATORS: Final = 64
"""Where profiles do not say how many may be needed."""


def accelerators_of(kind: str, count: int) -> list[AcceleratorView]:
    """Accelerators of one kind, in the order of their names."""
    digits = len(str(max(0, count - 1)))
    return [AcceleratorView(f"{kind}-{at:0{digits}}", kind) for at in range(count)]


def plan_fewest(
    plan: Plan, workloads: Sequence[Workload], kind: str, profiles: Profiles, params: PlanParams
) -> Placement:
    """The plan on the fewest accelerators without shortfall, except of unservable models.

    If there is none: the plan on as many as hold every replica of every model alone.
    """
    placement = plan(workloads, accelerators_of(kind, 1), profiles, (), params)
    for count in range(2, _enough(workloads, kind, profiles) + 1):
        if all(UNSERVABLE in each.reason for each in placement.models if each.reason):
            break
        placement = plan(workloads, accelerators_of(kind, count), profiles, (), params)
    return placement


def _enough(workloads: Sequence[Workload], kind: str, profiles: Profiles) -> int:
    """As many as the replicas that carry all rates, each alone at its largest batch."""
    enough = 0
    for each in workloads:
        batches = profiles.feasible(each, kind)
        if batches:
            enough += ceil(each.rate_rps / batches[-1].throughput_rps)
        elif not profiles.points(each.model, kind):
            return _MAX_ACCELERATORS
    return enough
