"""Plans simulated on shared GPUs, on table A.1, which is not part of this repository."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autoscaler.placement.problem import BatchPoint, ModelProfile, PlanParams, Profiles, Workload
from registry.domain.records import PlacedReplica
from research.experiments.elvinger.cells import EFFICIENTNET
from research.experiments.elvinger.gpus import SimulatedTask, simulate_plan
from research.experiments.elvinger.simulated import PlacedLoad, simulate


def test_large_batches_keep_the_throughput_and_lose_the_goodput(
    data: Callable[[str], Path],
) -> None:
    """Elvinger 2024, section 6.2.1: 2 x 64 in place of 2 x 8."""
    file = data("v100_profiles.csv")
    usher = simulate_plan(SimulatedTask("usher", EFFICIENTNET, file, 1))
    large = simulate_plan(SimulatedTask("usher", EFFICIENTNET, file, 1, ("efficientnet_b7", 64)))
    before, after = usher.served["efficientnet_b7"], large.served["efficientnet_b7"]
    assert after.throughput_rps == pytest.approx(before.throughput_rps, rel=0.02)
    assert after.goodput_rps <= 0.7 * before.goodput_rps


_POINTS = (BatchPoint(1, 0.01, 100.0, 10, 50, 50, 60), BatchPoint(4, 0.02, 200.0, 10, 50, 50, 60))
_PROFILES = Profiles((ModelProfile("a", "gpu", _POINTS), ModelProfile("b", "gpu", _POINTS)))


def _simulated(rate_rps: float, interference: str = "none") -> float:
    loads = (Workload("a", rate_rps, 0.3), Workload("b", rate_rps, 0.3))
    load = PlacedLoad(
        (PlacedReplica("a", "g", 4), PlacedReplica("b", "g", 4)),
        loads,
        {"g": "gpu"},
        PlanParams(),
        interference,
    )
    served = simulate(load, _PROFILES, 1)
    return sum(each.goodput_rps for each in served.values()) / (2 * rate_rps)


def test_goodput_follows_the_load_until_the_capacity() -> None:
    assert _simulated(50.0) == pytest.approx(1.0, abs=0.15)
    assert _simulated(400.0) < 0.5


def test_interference_costs_goodput_near_the_capacity() -> None:
    assert _simulated(190.0, "overlap") < _simulated(190.0) - 0.1


def test_a_model_without_a_replica_has_no_goodput() -> None:
    load = PlacedLoad((), (Workload("a", 10.0, 0.3),), {"g": "gpu"}, PlanParams())
    assert simulate(load, _PROFILES, 1)["a"].goodput_rps == 0
