"""Accelerators to plan for, and what a plan makes of them, for comparisons of planners."""

from collections.abc import Sequence

from autoscaler.placement.plan import Placement
from autoscaler.placement.problem import (
    AcceleratorView,
    Missing,
    Profiles,
    Workload,
    missing_profiles,
)


def accelerators_of(kind: str, count: int) -> list[AcceleratorView]:
    """Accelerators of one kind, in the order of their names."""
    digits = len(str(max(0, count - 1)))
    return [AcceleratorView(f"{kind}-{at:0{digits}}", kind) for at in range(count)]


def used_by(placement: Placement) -> tuple[str, ...]:
    """The accelerators with a replica, by name."""
    return tuple(sorted({each.accelerator for each in placement.replicas}))


def gap_ratio(placement: Placement) -> float:
    """Part of the bound that the plan misses; 0: proven optimal."""
    if placement.bound_rps <= 0:
        return 0.0
    return max(0.0, 1 - placement.total_rps / placement.bound_rps)


def of_one_kind(missing: Missing = missing_profiles) -> Missing:
    """What is `missing`, and the mistake of mixed kinds."""

    def check(workloads: Sequence[Workload], kinds: Sequence[str], profiles: Profiles) -> list[str]:
        mixed = f"accelerators must be of one kind for this planner, were of {kinds}"
        return [*missing(workloads, kinds, profiles), *([mixed] if len(kinds) > 1 else [])]

    return check
