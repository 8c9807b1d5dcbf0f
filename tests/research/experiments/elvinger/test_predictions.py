"""Predicted parts in time against simulated ones of the same queue, up to 90 % of the capacity."""

from typing import Any

import pytest

from autoscaler.placement.prediction import Predictor
from autoscaler.placement.problem import (
    BatchPoint,
    ModelProfile,
    PlanParams,
    Profiles,
    SlowedPair,
    Workload,
)
from registry.domain.model import RoutingPolicy
from registry.domain.records import PlacedReplica
from research.experiments.elvinger.simulated import PlacedLoad, simulate
from research.placement.built_batches import built_batches

_POINTS = tuple(
    BatchPoint(size, ms / 1000, 1000 * size / ms, 10, 50, 50, 40)
    for size, ms in ((1, 8.0), (4, 17.0), (8, 30.0), (16, 56.0))
)
_PROFILES = Profiles((ModelProfile("m", "gpu", _POINTS),))
_SEEDS = range(4)


@pytest.mark.parametrize("load", [0.5, 0.9])
@pytest.mark.parametrize("slo_s", [0.1, 0.2])
@pytest.mark.parametrize(
    ("router", "policy"), [(built_batches, "batch-round-robin"), (None, RoutingPolicy.AUTO)]
)
def test_predicted_parts_in_time_are_within_five_points(
    router: Any, policy: str, slo_s: float, load: float
) -> None:
    params = PlanParams(router=router, late_horizon_s=8.0)
    rate_rps = load * 8 / 0.030
    workloads = (Workload("m", rate_rps, slo_s),)
    replicas = (PlacedReplica("m", "g", 8),)
    predicted = Predictor(workloads, {"g": "gpu"}, _PROFILES, params).in_time(replicas)
    placed = PlacedLoad(replicas, workloads, {"g": "gpu"}, params, "none", policy)
    served = [simulate(placed, _PROFILES, seed)["m"] for seed in _SEEDS]
    simulated = sum(e.goodput_rps for e in served) / sum(e.offered_rps for e in served)
    assert predicted["m"] == pytest.approx(simulated, abs=0.05)


@pytest.mark.parametrize(
    ("router", "policy", "slo_s", "busy"),
    [(built_batches, "batch-round-robin", 0.2, 0.9), (None, RoutingPolicy.AUTO, 0.1, 0.75)],
)
def test_neighbours_slow_down_as_measured_pairs_do_when_simulated(
    router: Any, policy: str, slo_s: float, busy: float
) -> None:
    """Two models on one accelerator, each busy for this part of the time."""
    models, factor = ("a", "b"), 1.4
    profiles = Profiles(
        tuple(ModelProfile(model, "gpu", _POINTS) for model in models),
        pairs=(SlowedPair("a", "b", factor), SlowedPair("b", "a", factor)),
    )
    rate_rps = busy * 8 / (0.030 * (1 + (factor - 1) * busy))
    workloads = tuple(Workload(model, rate_rps, slo_s) for model in models)
    replicas = tuple(PlacedReplica(model, "g", 8) for model in models)
    params = PlanParams(router=router, late_horizon_s=8.0)
    predicted = Predictor(workloads, {"g": "gpu"}, profiles, params).in_time(replicas)
    placed = PlacedLoad(replicas, workloads, {"g": "gpu"}, params, "table", policy)
    runs = [each for seed in range(3) for each in simulate(placed, profiles, seed).values()]
    simulated = sum(e.goodput_rps for e in runs) / sum(e.offered_rps for e in runs)
    assert sum(predicted.values()) / 2 == pytest.approx(simulated, abs=0.05)
