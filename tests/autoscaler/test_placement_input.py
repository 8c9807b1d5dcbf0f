"""Which models are planned for, with which profiles and rates; views without placed pods."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoscaler.forecasting.forecasts import Demand
from autoscaler.forecasting.history import Forecast, ForecastHorizon
from autoscaler.placement.placement_input import (
    RECENT_S,
    expected_rates,
    find_accelerators,
    placement_input,
    within_client,
)
from autoscaler.placement.problem import ModelFits, ModelProfile, SlowedPair
from autoscaler.plan import without_placed
from registry.domain.cluster import ClusterState
from registry.domain.model import (
    ModelName,
    ModelPolicy,
    ModelRecord,
    ModelSpec,
    PlacementName,
    Tier,
)
from registry.domain.pod import Accelerator, PairFactor, PodInfo, Profile, ProfilePoint, ShareFactor
from registry.domain.pod_state import PodState
from tests.autoscaler.views import model, pod, pool

CORES = ("cpu-0", "cpu-1")


def _cluster(*accelerators: Accelerator, **models: dict[str, Any]) -> ClusterState:
    state = ClusterState()
    for at, each in enumerate(accelerators):
        state.pods[f"p{at}"] = PodState(PodInfo(f"p{at}", f"p{at}:1", "n", accelerator=each))
    for name, policy in models.items():
        spec = ModelSpec(ModelName("default", name), f"s3://m/{name}", policy=ModelPolicy(**policy))
        state.models[spec.name] = ModelRecord(spec)
    return state


def _add_profile(state: ClusterState, name: str, product: str, **point: Any) -> None:
    spec = state.models[ModelName("default", name)].spec
    points = (ProfilePoint(1, 0.1, memory_bytes=100, **point), ProfilePoint(4, 0.2))
    state.profiles.setdefault(spec.name, {})[product] = Profile(spec.key, product, points)


EPYC = Accelerator(product="EPYC", memory_bytes=4000, cores=2)


def test_models_without_deadline_or_profile_are_left_out_with_the_reason() -> None:
    state = _cluster(
        EPYC,
        ok={"deadline_s": 1.0, "max_batch_size": 4},
        lax={},
        bare={"deadline_s": 1.0},
        spared={"deadline_s": 1.0, "placement": PlacementName.OFF},
    )
    for name in ("ok", "lax", "spared"):
        _add_profile(state, name, "EPYC")
    found = placement_input(state, {"default/ok": 5.0}, CORES)
    [workload] = found.workloads
    assert (workload.model, workload.rate_rps, workload.slo_s, workload.max_batch_size) == (
        "default/ok",
        5.0,
        1.0,
        4,
    )
    assert "pilotlight.io/deadline" in found.left_out["default/lax"]
    assert "`pilotlight profile default/bare`" in found.left_out["default/bare"]
    assert "off" in found.left_out["default/spared"]


def test_a_profile_may_be_that_of_another_model() -> None:
    state = _cluster(EPYC, a={"deadline_s": 1.0, "profile": "b"}, b={})
    _add_profile(state, "b", "EPYC", sm_utilization_pct=30.0)
    found = placement_input(state, {}, CORES)
    points = found.profiles.points("default/a", "EPYC")
    assert [each.batch_size for each in points] == [1, 4]
    assert points[0].sm_utilization_pct == 30.0
    assert points[0].memory_pct == pytest.approx(5.0)  # 100 of the 2000 bytes of a group
    assert points[1].occupancy_pct == 100.0  # not measured: as if it were all


def test_accelerators_are_gpus_by_uuid_and_groups_of_cores() -> None:
    gpus = [Accelerator(f"GPU-{name}", "H100", 80) for name in "aab"]
    assert [each.name for each in find_accelerators(_cluster(*gpus), ())] == ["GPU-a", "GPU-b"]
    assert [each.name for each in find_accelerators(_cluster(EPYC), CORES)] == list(CORES)
    assert find_accelerators(_cluster(), CORES) == ()


def test_accelerators_whose_places_cpu_pods_take_are_named_by_them() -> None:
    state = _cluster()
    for name in ("node-b", "node-a"):
        info = PodInfo(name, f"{name}:1", "n", accelerator=EPYC, takes_places=name)
        state.pods[name] = PodState(info)
    assert [each.name for each in find_accelerators(state, ())] == ["node-a", "node-b"]


def test_plans_keep_within_what_a_client_of_mps_has() -> None:
    state = _cluster(small={"deadline_s": 9.0}, large={"deadline_s": 9.0})
    gpu = Accelerator("GPU-a", "H100", 1000)
    info = PodInfo("p", "p:1", "n", accelerator=gpu, takes_places="GPU-a", max_share=0.25)
    state.pods["p"] = PodState(info)
    _add_profile(state, "small", "H100", sm_utilization_pct=50.0, reserved_pct=10.0)
    _add_profile(state, "large", "H100", reserved_pct=26.0)
    state.profiles[ModelName("default", "large")]["H100"] = Profile(
        state.models[ModelName("default", "large")].spec.key,
        "H100",
        (ProfilePoint(1, 0.1, reserved_pct=26.0),),
    )
    found = placement_input(state, {}, ())
    assert "part of the memory of H100" in found.left_out["default/large"]
    points = found.profiles.points("default/small", "H100")
    assert {each.memory_pct for each in points} == {25.0}  # at most four replicas per GPU
    assert points[0].sm_utilization_pct == 25.0
    assert points[0].latency_s == pytest.approx(0.1 * 2**1.62)  # half of what it uses
    assert points[0].throughput_rps == pytest.approx(10 / 2**1.62)


def test_measured_shares_and_pairs_are_in_the_profiles() -> None:
    state = _cluster(EPYC, a={"deadline_s": 1.0}, b={"deadline_s": 1.0})
    for name in ("a", "b"):
        _add_profile(state, name, "EPYC")
    stored = state.profiles[ModelName("default", "a")]
    stored["EPYC"] = Profile(
        stored["EPYC"].key,
        "EPYC",
        stored["EPYC"].points,
        shares=(ShareFactor(50.0, 4, 1.9), ShareFactor(25.0, 4, 3.0)),
        pairs=(PairFactor("default/b", 1.4),),
    )
    profiles = placement_input(state, {}, CORES).profiles
    factors = [each.share_factors for each in profiles.points("default/a", "EPYC")]
    assert factors == [(), ((25.0, 3.0), (50.0, 1.9))]
    assert profiles.pairs == (SlowedPair("default/a", "default/b", 1.4),)
    [within] = within_client(
        ModelProfile("m", "EPYC", profiles.points("default/a", "EPYC")[1:]), 0.5
    ).points
    assert within.latency_s == pytest.approx(1.9 * 0.2)
    assert [share for share, _ in within.share_factors] == [25.0, 50.0]
    assert [each for _, each in within.share_factors] == pytest.approx([3.0 / 1.9, 1.0])


def test_fits_of_profiles_are_given_to_planners_with_how_much_slower_the_model_is() -> None:
    state = _cluster(
        EPYC, a={"deadline_s": 1.0}, b={"deadline_s": 1.0, "profile": "a"}, c={"deadline_s": 1.0}
    )
    fits = {"igniter": {"source": "fitted"}}
    for name in ("a", "c"):
        _add_profile(state, name, "EPYC")
    stored = state.profiles[ModelName("default", "a")]
    stored["EPYC"] = replace(stored["EPYC"], fits=fits)
    assert placement_input(state, {}, CORES, {"default/b": 2.0}).profiles.fits == (
        ModelFits("default/a", "EPYC", fits),
        ModelFits("default/b", "EPYC", fits, 2.0),
    )


def test_every_kind_needs_a_profile() -> None:
    state = _cluster(Accelerator("GPU-a", "H100", 80), EPYC, a={"deadline_s": 1.0})
    _add_profile(state, "a", "H100")
    assert "EPYC" in placement_input(state, {}, CORES).left_out["default/a"]


def _demand(*quantiles: float) -> Demand:
    count, horizon = len(quantiles), ForecastHorizon()
    windows, probabilities = len(horizon.windows_s), len(horizon.probabilities)
    values = np.array(quantiles)[:, None, None] * np.ones((1, windows, probabilities))
    mean = values[:, :, 0]
    return Demand(None, horizon, Forecast(mean, values, mean), np.ones(count))


def test_rates_are_the_forecasts_quantile_or_what_arrived_lately() -> None:
    rates = expected_rates(_demand(120.0, 120.0), ("a", "b"), {"b": 10.0})
    assert rates["a"] == 2.0
    assert rates["b"] == pytest.approx(10.0 + 1.2816 * (10.0 / RECENT_S) ** 0.5)
    assert expected_rates(None, ("a",), {"a": 1.0}) == {}


def test_loading_policies_see_no_placed_pods_and_models() -> None:
    placed = model("placed", at={"placed-0": Tier.DEVICE, "p": Tier.DEVICE})
    waiting = model("waiting", at={"p": Tier.DEVICE}, loading={"placed-1": Tier.DISK})
    pods = [
        pod("p"),
        pod("placed-0", placed_model="default/placed"),
        pod("placed-1", placed_model="default/waiting"),
    ]
    view = pool(pods, [placed, waiting], demand=_demand(1.0, 2.0))
    after = without_placed(view)
    assert list(after.pods) == ["p"]
    [left] = after.models
    assert left.spec.name.name == "waiting"  # its placed copy is not warm yet
    assert list(left.holders) == ["p"]
    assert after.demand is not None
    assert after.demand.forecast.mean[:, 0].tolist() == [2.0]
    alone = pool([pod("p")], [waiting])
    assert without_placed(alone) is alone
