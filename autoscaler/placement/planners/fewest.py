"""The fewest accelerators of one kind on which a planner serves every servable model in full.

Source: Elvinger 2024, section 5.2.1, "Non-fixed sized cluster".
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from autoscaler.placement.planners.plan import unservable_reasons
from autoscaler.placement.planners.problem import AcceleratorView, validate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.placement.planners.plan import Placement, Plan
    from autoscaler.placement.planners.problem import PlanParams, Profiles, Workload


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
    one = accelerators_of(kind, 1)
    validate(workloads, one, profiles)
    unservable = unservable_reasons(workloads, one, profiles)
    enough = 0
    for each in workloads:
        if each.model not in unservable:
            batches = profiles.feasible(each, kind)
            enough += max(1, ceil(each.rate_rps / batches[-1].throughput_rps))
    for count in range(1, max(1, enough) + 1):
        placement = plan(workloads, accelerators_of(kind, count), profiles, (), params)
        if all(not each.reason or each.model in unservable for each in placement.models):
            break
    return placement
