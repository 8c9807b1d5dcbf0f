"""Problems of the planners' tests, and plans written in short."""

import random
from collections.abc import Sequence

from autoscaler.placement import planner_of
from autoscaler.placement.plan import UNSERVABLE, Placement, Plan
from autoscaler.placement.problem import BatchPoint, ModelProfile, PlanParams, Profiles, Workload
from registry.domain.records import PlacedReplica
from research.placement.fleet import accelerators_of

KIND = "v100"
VISION = "alexnet densenet121 efficientnet_b7 resnet50 vgg19"


def workloads(models: str, rps: float, slo_ms: float) -> list[Workload]:
    return [Workload(model, rps, slo_ms / 1000) for model in models.split()]


def planned(
    planner: str,
    loads: Sequence[Workload],
    gpus: int,
    profiles: Profiles,
    params: PlanParams | None = None,
) -> Placement:
    return planner_of(planner)(
        loads, accelerators_of(KIND, gpus), profiles, (), params or PlanParams()
    )


def plan_fewest(plan: Plan, loads: Sequence[Workload], profiles: Profiles) -> Placement:
    """The plan on the fewest of up to 40 GPUs without shortfall, but of unservable models."""
    return next(
        found
        for gpus in range(1, 41)
        for found in [plan(loads, accelerators_of(KIND, gpus), profiles, (), PlanParams())]
        if all(UNSERVABLE in each.reason for each in found.models if each.reason)
    )


def replicas_of(placement: Placement, model: str) -> list[PlacedReplica]:
    return [each for each in placement.replicas if each.model == model]


def batches(placement: Placement, model: str) -> list[int]:
    """The batch size of each replica of a model."""
    return [each.batch_size for each in replicas_of(placement, model)]


def profile_of(model: str, *rows: tuple[int, float, float, float]) -> ModelProfile:
    """By batch: latency in s, and needs of memory and compute in %."""
    return ModelProfile(
        model,
        KIND,
        tuple(
            BatchPoint(batch, latency_s, round(batch / latency_s, 2), memory, *[compute] * 3)
            for batch, latency_s, memory, compute in rows
        ),
    )


def random_profiles(
    rng: random.Random, models: int, sizes: int = 3, steepest: float = 2.2
) -> Profiles:
    """Latency grows with the batch, at most so many times as it doubles, above 2 by more than it.

    Needs are random, so that some pairs fit and some do not.
    """
    found = []
    for number in range(models):
        latency_s = round(rng.uniform(0.005, 0.05), 4)
        points = []
        for at in range(sizes):
            batch = 4 * 2**at
            latency_s = round(latency_s * rng.uniform(1.0, steepest), 4)
            compute = rng.uniform(10, 90)
            points.append(
                BatchPoint(
                    batch,
                    latency_s,
                    round(batch / latency_s, 2),
                    rng.uniform(1, 60),
                    compute,
                    rng.uniform(5, compute),
                    rng.uniform(10, 95),
                )
            )
        found.append(ModelProfile(f"m{number}", KIND, tuple(points)))
    return Profiles(tuple(found))


def random_workloads(rng: random.Random, models: int) -> list[Workload]:
    return [
        Workload(f"m{number}", round(rng.uniform(50, 1500), 1), rng.choice([0.03, 0.05, 0.1, 0.2]))
        for number in range(models)
    ]
