"""Problems of the planners' tests, and plans written in short."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autoscaler.placement.planners.catalogue import PLANNERS
from autoscaler.placement.planners.fewest import accelerators_of
from autoscaler.placement.planners.igniter_coefficients import BATCHES, SHARES_PCT
from autoscaler.placement.planners.problem import (
    BatchPoint,
    ModelProfile,
    PlanParams,
    Profiles,
    Workload,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from autoscaler.placement.planners.plan import Placement

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
    return PLANNERS[planner](
        loads, accelerators_of(KIND, gpus), profiles, (), params or PlanParams()
    )


def batches(placement: Placement, model: str) -> list[int]:
    """The batch size of each replica of a model."""
    return [each.batch_size for each in placement.of(model)]


def random_profiles(rng: random.Random, models: int, sizes: int = 3) -> Profiles:
    """Latency grows with the batch; needs are random, so that some pairs fit and some do not."""
    found = []
    for number in range(models):
        latency_s = round(rng.uniform(0.005, 0.05), 4)
        points = []
        for at in range(sizes):
            batch = 4 * 2**at
            latency_s = round(latency_s * rng.uniform(1.0, 2.2), 4)
            compute = rng.uniform(10, 90)
            points.append(
                BatchPoint(
                    batch, latency_s, round(batch / latency_s, 2), rng.uniform(1, 60), compute,
                    rng.uniform(5, compute), rng.uniform(10, 95),
                )
            )  # fmt: skip
        found.append(ModelProfile(f"m{number}", KIND, tuple(points)))
    return Profiles(tuple(found))


def random_workloads(rng: random.Random, models: int) -> list[Workload]:
    return [
        Workload(f"m{number}", round(rng.uniform(50, 1500), 1), rng.choice([0.03, 0.05, 0.1, 0.2]))
        for number in range(models)
    ]


def igniter_document() -> dict[str, Any]:
    """A GPU that slows down from three co-located models on, and a small and a large model."""

    def model(scale: float) -> dict[str, Any]:
        latency = [
            [scale * (20 + 10 * batch) / (share + 2) + 0.5 for share in SHARES_PCT]
            for batch in BATCHES
        ]
        return {
            "gpulatency": latency,
            "power": [[90.0, 120.0, 150.0]] * 3,
            "frequency": [[1000.0] * 3] * 3,
            "l2caches": [2.0, 8.0, 14.0],
            "idletime_1": 0.05, "activetime_1": 10.0, "activetime_2": 11.0,
            "frequency_2": 1000.0, "l2cache": 20.0, "kernel": 50,
            "inputdata": 600_000, "outputdata": 4_000,
        }  # fmt: skip

    return {
        "hardware": {
            "idlepower": 50.0, "maxGPUpower": 300, "maxGPUfrequency": 1000,
            "power": [100.0, 180.0, 260.0, 300.0, 300.0],
            "frequency": [1000.0, 1000.0, 1000.0, 960.0, 880.0],
            "idletime": [0.001, 0.002, 0.004, 0.006, 0.008],
            "unit": 2.5, "bandwidth": 10_000_000,
        },
        "small": model(1.0),
        "large": model(8.0),
    }  # fmt: skip
