"""One plan beside what runs now, both by the predicted goodput; runs in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoscaler.placement.planners.catalogue import PLANNERS
from autoscaler.placement.planners.prediction import Predictor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.placement.planners.plan import Placement
    from autoscaler.placement.planners.problem import (
        AcceleratorView,
        PlanParams,
        Profiles,
        Workload,
    )
    from registry.domain.placement import PlacedReplica


@dataclass(frozen=True, slots=True)
class PlanningJob:
    """The arguments of one plan."""

    planner: str
    workloads: tuple[Workload, ...]
    accelerators: tuple[AcceleratorView, ...]
    profiles: Profiles
    current: tuple[PlacedReplica, ...]
    params: PlanParams


@dataclass(frozen=True, slots=True)
class PlanningResult:
    """A plan, and what it gains over the replicas that run now."""

    placement: Placement
    gain_rps: float


def plan_and_compare(job: PlanningJob) -> PlanningResult:
    """Raises InvalidPlacementInput."""
    placement = PLANNERS[job.planner](
        job.workloads, job.accelerators, job.profiles, job.current, job.params
    )
    gain_rps = predicted_rps(job, placement.replicas) - predicted_rps(job, job.current)
    return PlanningResult(placement, gain_rps)


def predicted_rps(job: PlanningJob, replicas: Sequence[PlacedReplica]) -> float:
    """Responses in time per second, of the replicas that have a profile."""
    kinds = {each.name: each.kind for each in job.accelerators}
    rates = {each.model: each.rate_rps for each in job.workloads}
    known = [
        each
        for each in replicas
        if each.model in rates
        and each.accelerator in kinds
        and job.profiles.point(each.model, kinds[each.accelerator], each.batch_size)
    ]
    in_time = Predictor(job.workloads, kinds, job.profiles, job.params).predict(known).in_time
    return sum(rates[model] * part for model, part in in_time.items())
