"""The output of every planner: replicas, and the goodput recomputed from them.

Goodput of a model: min(rate, sum of the throughputs of its replicas), Elvinger 2024, section 5.4.1.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Final, TypeAlias

from autoscaler.placement.problem import AcceleratorView, PlanParams, Profiles, Workload
from registry.domain.records import PlacedReplica

Plan: TypeAlias = (
    "Callable[[Sequence[Workload], Sequence[AcceleratorView], Profiles, Sequence[PlacedReplica], "
    "PlanParams], Placement]"
)
"""Every planner; the replicas are those that run now."""
UNSERVABLE: Final = "unservable"
"""Begins the reason of a model that no number of accelerators serves."""
SHORT_RPS: Final = 1e-6
"""A smaller shortfall is rounding."""


@dataclass(frozen=True, slots=True)
class ModelGoodput:
    """What the plan expects for one model."""

    model: str
    rate_rps: float
    goodput_rps: float
    reason: str = ""
    """Why the goodput is below the rate; empty: it is not."""

    @property
    def shortfall_rps(self) -> float:
        short = self.rate_rps - self.goodput_rps
        return short if short > SHORT_RPS else 0.0


@dataclass(frozen=True, slots=True)
class Placement:
    """A whole plan. Accelerators without a replica are idle."""

    planner: str
    replicas: tuple[PlacedReplica, ...]
    models: tuple[ModelGoodput, ...]
    """By name."""
    bound_rps: float
    """No plan has a higher total under the planner's own model of goodput."""

    @property
    def total_rps(self) -> float:
        return sum(each.goodput_rps for each in self.models)


def replica_order(replica: PlacedReplica) -> tuple[str, str]:
    return replica.accelerator, replica.model


def make_placement(
    planner: str,
    replicas: Sequence[PlacedReplica],
    workloads: Sequence[Workload],
    *,
    capacity: Callable[[PlacedReplica], float],
    bound_rps: float,
    reasons: Mapping[str, str],
) -> Placement:
    """The plan with its goodput and each replica's part of the rate, from the replicas alone.

    `capacity`: requests per second that a replica serves; `reasons`: why a model falls short.
    """
    served: defaultdict[str, list[PlacedReplica]] = defaultdict(list)
    for replica in sorted(replicas, key=replica_order):
        served[replica.model].append(replica)
    models, placed = [], []
    for workload in sorted(workloads, key=lambda each: each.model):
        capacities = [capacity(each) for each in served[workload.model]]
        total = sum(capacities)
        goodput = min(workload.rate_rps, total)
        short = workload.rate_rps - goodput > SHORT_RPS
        reason = reasons.get(workload.model) or (
            f"{len(capacities)} replicas serve {total:.2f} req/s" if capacities else "no room"
        )
        models.append(
            ModelGoodput(workload.model, workload.rate_rps, goodput, reason if short else "")
        )
        for replica, mine in zip(served[workload.model], capacities, strict=True):
            part = mine / total if total else 1 / len(capacities)
            placed.append(replace(replica, rate_rps=workload.rate_rps * part))
    placed.sort(key=replica_order)
    bound = max(bound_rps, sum(each.goodput_rps for each in models))
    return Placement(planner, tuple(placed), tuple(models), bound)


def profiled_capacity(
    profiles: Profiles, accelerators: Sequence[AcceleratorView]
) -> Callable[[PlacedReplica], float]:
    """The profile's own throughput of a replica's batch; 0 for a batch without profile."""
    kinds = {each.name: each.kind for each in accelerators}

    def capacity(replica: PlacedReplica) -> float:
        point = profiles.point(replica.model, kinds[replica.accelerator], replica.batch_size)
        return point.throughput_rps if point is not None else 0.0

    return capacity


def unservable_reasons(
    workloads: Sequence[Workload], accelerators: Sequence[AcceleratorView], profiles: Profiles
) -> dict[str, str]:
    """Models that no accelerator can serve within the SLO in any batch, and why."""
    kinds = sorted({each.kind for each in accelerators})
    reasons = {}
    for workload in workloads:
        if any(profiles.feasible(workload, kind) for kind in kinds):
            continue
        points = [each for kind in kinds for each in profiles.points(workload.model, kind)]
        fastest = min(points, key=lambda each: each.latency_s)
        reasons[workload.model] = (
            f"{UNSERVABLE}: its fastest batch ({fastest.batch_size}) takes "
            f"{fastest.latency_s * 1000:.1f} ms, the SLO is {workload.slo_s * 1000:g} ms"
            if fastest.latency_s > workload.slo_s
            else f"{UNSERVABLE}: no measured batch is at most {workload.max_batch_size}"
        )
    return reasons


def throughput_bound(
    workloads: Sequence[Workload], accelerators: Sequence[AcceleratorView], profiles: Profiles
) -> float:
    """Of any plan with a model at most once per accelerator: each serves every model alone."""
    kinds = Counter(each.kind for each in accelerators)
    return fsum(
        min(
            workload.rate_rps,
            fsum(
                count
                * max(
                    (point.throughput_rps for point in profiles.feasible(workload, kind)), default=0
                )
                for kind, count in kinds.items()
            ),
        )
        for workload in workloads
    )
