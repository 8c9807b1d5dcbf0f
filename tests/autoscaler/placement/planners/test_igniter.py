"""iGniter: its published plan where the data folder has the measurements, and synthetic ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from autoscaler.placement.planners.fewest import accelerators_of, plan_fewest
from autoscaler.placement.planners.igniter import igniter
from autoscaler.placement.planners.igniter_coefficients import BATCHES, SHARES_PCT, fit_active
from autoscaler.placement.planners.igniter_json import read_igniter
from autoscaler.placement.planners.igniter_latency import (
    Resident,
    active_alone,
    batch_size,
    lower_bound_pct,
    predict,
)
from autoscaler.placement.planners.problem import (
    InvalidPlacementInput,
    PlanParams,
    Profiles,
    Workload,
)
from tests.autoscaler.placement.planners.cases import KIND, igniter_document

_PUBLISHED = (
    Workload("alexnet", 500, 0.015),
    Workload("resnet50", 400, 0.040),
    Workload("vgg19", 200, 0.060),
)


def _read(text: str) -> Profiles:
    return Profiles((), igniter=(read_igniter(text, kind=KIND, file="igniter.json"),))


@pytest.fixture(scope="module")
def published() -> Profiles:
    folder = os.environ.get("PILOTLIGHT_DATA", "")
    path = Path(folder) / "igniter_profile_v100_tensorrt.json"
    if not folder or not path.is_file():
        pytest.skip(f"{path.name} is not in PILOTLIGHT_DATA ({folder or 'not set'})")
    return _read(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def synthetic_gpu() -> Profiles:
    return _read(json.dumps(igniter_document()))


def test_the_published_plan(published: Profiles) -> None:
    found = igniter(_PUBLISHED, accelerators_of(KIND, 2), published, (), PlanParams())
    assert [
        (each.model, each.accelerator, each.batch_size, each.share_pct) for each in found.replicas
    ] == [
        ("alexnet", "v100-0", 4, 10), ("resnet50", "v100-0", 8, 30), ("vgg19", "v100-0", 6, 37.5),
    ]  # fmt: skip
    assert not found.has_shortfall
    residents = [
        Resident(published.coefficients(each.model, KIND), each.batch_size, each.share_pct or 0)
        for each in found.replicas
    ]
    latencies = predict(residents, published.hardware(KIND))
    for latency, measured_ms in zip(latencies, (6.612, 18.458, 27.702), strict=True):
        assert latency.gpu == pytest.approx(measured_ms, rel=0.03)


def test_formula_5_is_recovered_from_its_own_values() -> None:
    batches, shares = np.meshgrid(BATCHES, SHARES_PCT, indexing="ij")
    truth = (0.004 * batches**2 + 9 * batches + 24) / (shares + 3.0) + 0.4
    k1, k2, k3, k4, k5 = fit_active(
        batches.ravel().astype(float), shares.ravel(), truth.ravel().astype(float)
    )
    assert (k1, k2, k3, k5) == pytest.approx((0.004, 9, 24, 0.4), rel=0.05)
    assert k4 == pytest.approx(3.0, abs=0.05)


def test_hardware_is_fitted(synthetic_gpu: Profiles) -> None:
    hardware = synthetic_gpu.hardware(KIND)
    # 100, 180, 260 W continue to 340 and 420 W: 40 and 120 above the cap lose 40 and 120 MHz.
    assert hardware.frequency_slope == pytest.approx(-1.0)
    assert hardware.idle_slope_ms > 0


def test_neighbours_and_small_shares_slow_a_model_down(synthetic_gpu: Profiles) -> None:
    hardware, model = synthetic_gpu.hardware(KIND), synthetic_gpu.coefficients("large", KIND)
    assert active_alone(model, 8, 20) > active_alone(model, 8, 40)
    mine = Resident(model, 8, 20.0)
    alone, beside = predict([mine], hardware)[0], predict([mine] * 3, hardware)[0]
    assert beside.gpu > alone.gpu
    assert beside.load == alone.load


def test_the_lower_bound_is_the_smallest_share_in_time(synthetic_gpu: Profiles) -> None:
    hardware, model = synthetic_gpu.hardware(KIND), synthetic_gpu.coefficients("large", KIND)
    size = batch_size(model, hardware, half_slo_ms=50, rate_rps=200)
    assert size == 10
    share = lower_bound_pct(model, hardware, size, half_slo_ms=50)
    assert predict([Resident(model, size, share)], hardware)[0].total <= 50
    less = share - hardware.share_step_pct
    assert predict([Resident(model, size, less)], hardware)[0].total > 50
    assert lower_bound_pct(model, hardware, size, half_slo_ms=1) == float("inf")


def test_shares_are_within_a_gpu_and_models_in_time(synthetic_gpu: Profiles) -> None:
    loads = [Workload("large", 300, 0.08), Workload("small", 900, 0.03)]
    found = plan_fewest(igniter, loads, KIND, synthetic_gpu, PlanParams())
    assert not found.has_shortfall
    for gpu in found.used:
        shares = [each.share_pct or 0 for each in found.replicas if each.accelerator == gpu]
        assert sum(shares) <= 100
    turned = igniter(
        loads[::-1], accelerators_of(KIND, len(found.used)), synthetic_gpu, (), PlanParams()
    )
    assert turned == found


def test_a_model_too_large_for_a_gpu_gets_whole_ones_numbered_last(
    synthetic_gpu: Profiles,
) -> None:
    loads = [Workload("large", 3000, 0.08), Workload("small", 300, 0.03)]
    found = plan_fewest(igniter, loads, KIND, synthetic_gpu, PlanParams())
    whole = [each for each in found.of("large") if each.share_pct == 100]
    assert len(whole) >= 2
    assert max(each.batch_size for each in whole) <= 32
    shared = {each.accelerator for each in found.replicas if each.share_pct != 100}
    assert max(shared) < min(each.accelerator for each in whole)
    fewer = igniter(loads, accelerators_of(KIND, 2), synthetic_gpu, (), PlanParams())
    assert "iGniter's plan needs" in next(e.reason for e in fewer.models if e.model == "large")


def test_bad_measurements_and_missing_models_are_refused(synthetic_gpu: Profiles) -> None:
    wrong = igniter_document()
    wrong["hardware"]["unit"] = -1
    wrong["small"]["gpulatency"] = [[1.0]]
    wrong["large"]["kernel"] = "many"
    with pytest.raises(InvalidPlacementInput) as caught:
        _read(json.dumps(wrong))
    assert len(caught.value.problems) == 3
    with pytest.raises(InvalidPlacementInput, match="not JSON"):
        _read("{")
    with pytest.raises(InvalidPlacementInput, match="no iGniter coefficients on v100"):
        igniter([Workload("x", 1, 1)], accelerators_of(KIND, 1), synthetic_gpu, (), PlanParams())
