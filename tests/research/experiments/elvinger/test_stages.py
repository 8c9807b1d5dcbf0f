"""The stages of simulated requests, from their records, and in a simulation."""

import pytest

from autoscaler.placement.problem import BatchPoint, ModelProfile, PlanParams, Profiles, Workload
from registry.domain.records import PlacedReplica
from research.experiments.elvinger.simulated import PlacedLoad, simulate
from research.experiments.elvinger.stages import Row, stages_of


def _row(arrived_s: float, ended_s: float) -> Row:
    return {
        "scheduled_s": arrived_s - 0.01,
        "preprocess_ms": 10.0,
        "postprocess_ms": 0.0,
        "finished_s": ended_s,
        "infer_ms": 1000 * (ended_s - arrived_s),
        "predict_pod": "p",
    }


def test_a_batch_is_built_then_waits_for_the_one_before() -> None:
    full = [_row(1.00, 1.20), _row(1.05, 1.20)]
    late = [_row(1.04, 1.40), _row(1.06, 1.40)]
    found = stages_of([*full, *late], {"p": 2})
    assert found.build_s == pytest.approx((0.05, 0.0, 0.02, 0.0))
    assert found.queue_s == pytest.approx((0.0, 0.0, 0.14, 0.14))
    assert found.inference_s == pytest.approx((0.15, 0.15, 0.20, 0.20))
    assert found.total_s == pytest.approx((0.21, 0.16, 0.37, 0.35))
    assert found.batches == ((1.20, 2), (1.40, 2))


def test_a_batch_that_does_not_fill_is_sent_after_100_ms() -> None:
    found = stages_of([_row(2.0, 2.13)], {"p": 8})
    assert found.build_s == pytest.approx((0.1,))
    assert found.inference_s == pytest.approx((0.03,))


def test_without_requests_there_are_no_times() -> None:
    assert stages_of([], {}).p95_s()["total"] == 0


def test_simulated_stages_add_up_and_inference_takes_the_profiled_time() -> None:
    points = (
        BatchPoint(1, 0.01, 100.0, 10, 50, 50, 60),
        BatchPoint(4, 0.02, 200.0, 10, 50, 50, 60),
    )
    profiles = Profiles((ModelProfile("a", "gpu", points),))
    load = PlacedLoad(
        (PlacedReplica("a", "g", 4),),
        (Workload("a", 190.0, 0.3),),
        {"g": "gpu"},
        PlanParams(),
        "none",
    )
    stages = simulate(load, profiles, 1, ("a",))["a"].stages
    assert stages is not None
    parts = (stages.transfer_s, stages.build_s, stages.queue_s, stages.inference_s)
    for each in zip(*parts, stages.total_s, strict=True):
        assert sum(each[:-1]) == pytest.approx(each[-1], abs=1e-6)
    assert max(stages.inference_s) == pytest.approx(0.02, abs=1e-6)
    assert max(stages.queue_s) > 0.02
    assert {size for _, size in stages.batches} <= {1, 2, 3, 4}
