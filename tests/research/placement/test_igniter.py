"""iGniter: its published plan where the data folder has the measurements, and synthetic ones."""

import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.placement.problem import InvalidPlacementInput, PlanParams, Profiles, Workload
from research.placement.fleet import accelerators_of, used_by
from research.placement.igniter import plan_igniter
from research.placement.igniter_file import igniter_profiles
from research.placement.igniter_fit import BATCHES, SHARES_PCT, fit_active
from research.placement.igniter_model import (
    NAME,
    Resident,
    active_alone,
    batch_size,
    lower_bound_pct,
    predict,
)
from tests.autoscaler.placement.cases import KIND, batches, plan_fewest, replicas_of
from tests.research.placement.igniter_cases import coefficients, igniter_document, measured

_PUBLISHED = (
    Workload("alexnet", 500, 0.015),
    Workload("resnet50", 400, 0.040),
    Workload("vgg19", 200, 0.060),
)


@pytest.fixture(scope="module")
def published() -> Profiles:
    folder = os.environ.get("PILOTLIGHT_DATA", "")
    path = Path(folder) / "igniter_profile_v100_tensorrt.json"
    if not folder or not path.is_file():
        pytest.skip(f"{path.name} is not in PILOTLIGHT_DATA ({folder or 'not set'})")
    return measured(path.read_text(encoding="utf-8"), KIND)


@pytest.fixture(scope="module")
def synthetic_gpu() -> Profiles:
    return measured(igniter_document(), KIND)


def test_the_published_plan(published: Profiles) -> None:
    found = plan_igniter(_PUBLISHED, accelerators_of(KIND, 2), published, (), PlanParams())
    assert [
        (each.model, each.accelerator, each.batch_size, each.share_pct) for each in found.replicas
    ] == [("alexnet", "v100-0", 4, 10), ("resnet50", "v100-0", 8, 30), ("vgg19", "v100-0", 6, 37.5)]
    assert not any(each.reason for each in found.models)
    known = coefficients(published, KIND)
    residents = [
        Resident(known.models[each.model], each.batch_size, each.share_pct or 0)
        for each in found.replicas
    ]
    latencies = predict(residents, known.hardware)
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
    hardware = coefficients(synthetic_gpu, KIND).hardware
    # 100, 180, 260 W continue to 340 and 420 W: 40 and 120 above the cap lose 40 and 120 MHz.
    assert hardware.frequency_slope == pytest.approx(-1.0)
    assert hardware.idle_slope_ms > 0


def test_neighbours_and_small_shares_slow_a_model_down(synthetic_gpu: Profiles) -> None:
    known = coefficients(synthetic_gpu, KIND)
    hardware, model = known.hardware, known.models["large"]
    assert active_alone(model, 8, 20) > active_alone(model, 8, 40)
    mine = Resident(model, 8, 20.0)
    alone, beside = predict([mine], hardware)[0], predict([mine] * 3, hardware)[0]
    assert beside.gpu > alone.gpu
    assert beside.load == alone.load


def test_the_lower_bound_is_the_smallest_share_in_time(synthetic_gpu: Profiles) -> None:
    known = coefficients(synthetic_gpu, KIND)
    hardware, model = known.hardware, known.models["large"]
    size = batch_size(model, hardware, half_slo_ms=50, rate_rps=200)
    assert size == 10
    share = lower_bound_pct(model, hardware, size, half_slo_ms=50)
    assert predict([Resident(model, size, share)], hardware)[0].total <= 50
    less = share - hardware.share_step_pct
    assert predict([Resident(model, size, less)], hardware)[0].total > 50
    assert lower_bound_pct(model, hardware, size, half_slo_ms=1) == float("inf")


def test_shares_are_within_a_gpu_and_models_in_time(synthetic_gpu: Profiles) -> None:
    loads = [Workload("large", 300, 0.08), Workload("small", 900, 0.03)]
    found = plan_fewest(plan_igniter, loads, synthetic_gpu)
    assert not any(each.reason for each in found.models)
    for gpu in used_by(found):
        shares = [each.share_pct or 0 for each in found.replicas if each.accelerator == gpu]
        assert sum(shares) <= 100
    turned = plan_igniter(
        loads[::-1], accelerators_of(KIND, len(used_by(found))), synthetic_gpu, (), PlanParams()
    )
    assert turned == found


def test_a_model_too_large_for_a_gpu_gets_whole_ones_numbered_last(synthetic_gpu: Profiles) -> None:
    loads = [Workload("large", 3000, 0.08), Workload("small", 300, 0.03)]
    found = plan_fewest(plan_igniter, loads, synthetic_gpu)
    whole = [each for each in replicas_of(found, "large") if each.share_pct == 100]
    assert len(whole) >= 2
    assert max(each.batch_size for each in whole) <= 32
    shared = {each.accelerator for each in found.replicas if each.share_pct != 100}
    assert max(shared) < min(each.accelerator for each in whole)
    fewer = plan_igniter(loads, accelerators_of(KIND, 2), synthetic_gpu, (), PlanParams())
    assert "iGniter's plan needs" in next(e.reason for e in fewer.models if e.model == "large")


@pytest.mark.parametrize(("rps", "batches_"), [(257, [4]), (514, [4, 4])])
def test_a_rest_whose_batch_needs_over_a_gpu_gets_a_smaller_one(
    published: Profiles, rps: float, batches_: list[int]
) -> None:
    """At 257 req/s step 8 wants batches of 5, too long for half of 32 ms; batches of 4 do."""
    loads = [Workload("ssd", rps, 0.032)]
    found = plan_igniter(loads, accelerators_of(KIND, 12), published, (), PlanParams())
    assert (found.total_rps, batches(found, "ssd")) == (rps, batches_)


@pytest.mark.parametrize("largest", [None, 2])
@pytest.mark.parametrize("slo_s", [0.007, 0.009, 0.02, 0.08])
def test_enough_gpus_carry_every_rate(
    synthetic_gpu: Profiles, slo_s: float, largest: int | None
) -> None:
    for rps in range(50, 1500, 29):
        load = Workload("large", rps, slo_s, largest)
        found = plan_igniter([load], accelerators_of(KIND, 40), synthetic_gpu, (), PlanParams())
        assert found.total_rps == pytest.approx(rps), load
        assert largest is None or max(batches(found, "large")) <= largest


def test_shares_end_with_the_whole_gpu_where_it_is_no_multiple_of_the_step() -> None:
    document = igniter_document()
    document["hardware"]["unit"] = 40.0
    profiles = measured(document, KIND)
    found = plan_igniter(
        [Workload("large", 310, 0.007)], accelerators_of(KIND, 2), profiles, (), PlanParams()
    )
    assert [each.share_pct for each in found.replicas] == [100]
    assert found.total_rps == 310


def test_a_model_above_half_its_slo_with_a_gpu_of_its_own_keeps_it(synthetic_gpu: Profiles) -> None:
    """Its lower bound does not know that power slows the GPU down."""
    known = coefficients(synthetic_gpu, KIND)
    hot = replace(known.hardware, power_cap_w=100, frequency_slope=-1.6)
    stored = [
        replace(each, fits={NAME: {**each.fits[NAME], "hardware": asdict(hot)}})
        for each in synthetic_gpu.fits
    ]
    profiles = Profiles((), fits=tuple(stored))
    gpus = accelerators_of(KIND, 2)
    loads = [Workload("large", 1100, 0.08), Workload("small", 100, 0.08)]
    found = plan_igniter(loads, gpus, profiles, (), PlanParams())
    [large] = replicas_of(found, "large")
    assert large.share_pct == 100
    [latency] = predict([Resident(known.models["large"], large.batch_size, 100)], hot)
    assert latency.total > 40


def test_bad_measurements_and_missing_models_are_refused(synthetic_gpu: Profiles) -> None:
    wrong = igniter_document()
    wrong["hardware"]["unit"] = -1
    wrong["small"]["gpulatency"] = [[1.0]]
    wrong["large"]["kernel"] = "many"
    with pytest.raises(InvalidPlacementInput) as caught:
        measured(wrong, KIND)
    assert len(caught.value.problems) == 3
    assert igniter_profiles("{", KIND, "f") is None
    with pytest.raises(InvalidPlacementInput, match="no iGniter coefficients on v100"):
        plan_igniter(
            [Workload("x", 1, 1)], accelerators_of(KIND, 1), synthetic_gpu, (), PlanParams()
        )
