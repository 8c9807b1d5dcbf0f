"""Autoscalers in a run: scripted steps, and loading policies of the live autoscaler."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autoscaler.forecast import DemandForecaster
from autoscaler.forecasting.counts import ForecastInput
from autoscaler.forecasting.forecasts import Demand
from autoscaler.forecasting.history import Forecast
from autoscaler.loading_policies import LOADING_POLICIES
from autoscaler.loading_policies.holding_value import Prices
from autoscaler.loading_policies.predictive import Predictive, predictive
from autoscaler.loading_policies.reactive import KeepAlive, keep_alive
from autoscaler.policy import LoadingPolicy
from load.simulator.autoscaling import PlannedAutoscaler
from load.simulator.simulation import Simulation
from registry.domain.model import ModelName, RoutingPolicy, Tier
from tests.load.simulator.small_cluster import M, ScriptedAutoscaler, Step, cluster, records, took_s
from tests.load.simulator.traces import Row, trace

pytestmark = pytest.mark.slow


def _played(plan: Any, rows: Sequence[Row], *steps: Step) -> tuple[Any, ScriptedAutoscaler]:
    scaler = ScriptedAutoscaler(10.0, *steps)
    return records(Simulation(plan, trace(list(rows)), autoscaler=scaler)), scaler


def _demote(tier: Tier) -> Step:
    return lambda state, actions: actions.demote(M, "n", tier)


def _preload(tier: Tier) -> Step:
    return lambda state, actions: actions.preload(M, "n", tier)


@pytest.mark.parametrize(
    ("tier", "start"), [(Tier.HOST, "host"), (Tier.DISK, "disk"), (Tier.REMOTE, "remote")]
)
def test_demoted_model_starts_from_its_new_tier(tier: Tier, start: str) -> None:
    plan = cluster({"host_memory": "1GB"})
    rows, scaler = _played(plan, [(0.0, "m"), (60.0, "m")], _demote(tier))
    assert scaler.results == [True]
    assert [row["start"] for row in rows] == ["remote", start]
    assert scaler.arrivals == [(M, 0.0), (M, 60.0)]


def test_model_in_use_or_loading_is_not_demoted() -> None:
    slow = {"infer": {1: "15s"}}
    rows, scaler = _played(
        cluster({}, slow), [(0.0, "m"), (9.5, "m")], _demote(Tier.DISK), _demote(Tier.DISK)
    )
    assert scaler.results == [False, False]
    assert [row["status"] for row in rows] == [200, 200]
    far = {"load": {"remote": "30s"}}
    rows, scaler = _played(cluster({}, far), [(0.0, "m")], _demote(Tier.REMOTE))
    assert scaler.results == [False]
    assert rows[0]["status"] == 200


@pytest.mark.parametrize(("tier", "start"), [(Tier.HOST, "host"), (Tier.DISK, "disk")])
def test_preload_to_a_lower_tier_decides_the_source_of_the_load(tier: Tier, start: str) -> None:
    plan = cluster({"host_memory": "1GB"})
    rows, scaler = _played(plan, [(45.0, "m")], _preload(tier), _preload(tier), _preload(tier))
    assert scaler.results == [True, False, False]
    assert rows[0]["start"] == start


def test_preload_to_host_needs_host_memory() -> None:
    rows, scaler = _played(cluster({}), [(45.0, "m")], _preload(Tier.HOST))
    assert scaler.results == [False]
    assert rows[0]["start"] == "remote"


def test_load_that_waits_for_memory_continues_after_a_demotion() -> None:
    """`b` waits for the memory of `a`, which is pinned and so is not evicted."""
    plan = cluster(
        {"pods": [{"memory": "150MB"}]},
        {"name": "a", "annotations": {"pin": "true"}},
        {"name": "b"},
    )
    rows, scaler = _played(
        plan,
        [(0.0, "a"), (5.0, "b")],
        lambda state, actions: actions.demote(ModelName("default", "a"), "n", Tier.DISK),
    )
    assert scaler.results == [True]
    assert [row["status"] for row in rows] == [200, 200]
    assert rows[1]["finished_s"] > 10.0


def _planned(
    policy: LoadingPolicy[Any], rows: list[Row], *, every_s: float = 10.0, **model: Any
) -> tuple[list[Any], PlannedAutoscaler, Simulation]:
    plan = cluster({}, model)
    scaler = PlannedAutoscaler(policy, plan, every_s=every_s)
    simulation = Simulation(plan, trace(rows), autoscaler=scaler)
    return records(simulation), scaler, simulation


def test_keep_alive_demotes_after_its_time() -> None:
    rule = keep_alive(KeepAlive(keep_s=60.0))
    rows, scaler, simulation = _planned(rule, [(0.0, "m"), (50.0, "m"), (150.0, "m")])
    assert [row["start"] for row in rows] == ["remote", "warm", "disk"]
    assert scaler.actions == {"demote idle": 1}
    assert simulation.summary.wasted_memory_byte_s == pytest.approx(110e6 * 100, rel=0.2)


def test_predictive_loads_a_periodic_model_before_its_period() -> None:
    """Two minutes of requests every half hour: once forecast, none starts cold."""
    rows: list[Row] = [(1800.0 * period + 20.0 * at, "m") for period in range(7) for at in range(6)]
    rule = predictive(Predictive(prices=Prices(device=80.0)))
    found, scaler, simulation = _planned(
        rule, rows, every_s=20.0, load={"remote": "5s", "disk": "2s"}
    )
    cold = {int(row["scheduled_s"] // 1800) for row in found if row["start"] != "warm"}
    assert 0 in cold
    assert max(cold) <= 4
    assert scaler.actions["load forecast"] >= 2
    assert scaler.actions["demote idle"] >= 2
    assert simulation.summary.wasted_memory_byte_s / 100e6 < 0.85 * simulation.events.now_s


_EMPTY_PODS: dict[str, Any] = {"count": 2, "pods": [{"memory": "4GB"}]}


@pytest.mark.parametrize(("quiet_s", "tick_s"), [(60, 0.5), (180, 2.0), (300, 0.5)])
def test_predictive_does_not_load_a_model_again_after_a_pause(quiet_s: int, tick_s: float) -> None:
    """Two bursts of 8 s to one model on two empty pods: each pod loads it at most once."""
    rows: list[Row] = [
        (start_s + at / 10, "m") for start_s in (3.0, 11.0 + quiet_s) for at in range(80)
    ]
    rows.append((rows[-1][0] + 300.0, "m"))
    plan = cluster(_EMPTY_PODS)
    scaler = PlannedAutoscaler(predictive(), plan, every_s=tick_s)
    simulation = Simulation(plan, trace(rows), autoscaler=scaler)
    found = records(simulation)
    assert simulation.summary.loads_started.total() <= 2
    assert not [name for name in scaler.actions if name.startswith("demote")]
    assert found[-1]["start"] == "warm"


class _WrongForecaster(DemandForecaster):
    """Expects `factor` times as many arrivals as production does."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def forecast(self, inputs: ForecastInput) -> Demand:
        demand = super().forecast(inputs)
        forecast = Forecast(
            mean=self._factor * demand.forecast.mean,
            quantiles=self._factor * demand.forecast.quantiles,
            p_arrival=1 - (1 - demand.forecast.p_arrival) ** self._factor,
        )
        p_minute = 1 - (1 - demand.p_minute) ** self._factor
        return replace(demand, forecast=forecast, p_minute=p_minute)


def _short_of_memory(
    rows: Sequence[Row], places: int, *, models: int, tick_s: float | None, factor: float = 1.0
) -> tuple[int, int, float]:
    """Cold starts, loads and mean latency by `auto`; without an autoscaler if `tick_s` is None."""
    one = {"count": models, "load": {"remote": "1s", "disk": "1s"}}
    plan = cluster({"pods": [{"memory": f"{120 * places}MB", "slots": 4}]}, one)
    scaler = None
    if tick_s is not None:
        forecaster = _WrongForecaster(factor)
        scaler = PlannedAutoscaler(predictive(), plan, every_s=tick_s, forecaster=forecaster)
    run = Simulation(plan, trace(list(rows)), RoutingPolicy.AUTO, autoscaler=scaler)
    found = records(run)
    cold = sum(row["start"] != "warm" for row in found)
    return cold, run.summary.loads_started.total(), sum(map(took_s, found)) / len(found)


def _poisson(rates_per_s: Sequence[float], until_s: float, seed: int) -> list[Row]:
    rng, rows = random.Random(seed), []
    for number, rate in enumerate(rates_per_s):
        at_s = rng.expovariate(rate)
        while at_s < until_s:
            rows.append((at_s, f"m-{number}"))
            at_s += rng.expovariate(rate)
    return sorted(rows)


_PERIODIC: list[Row] = sorted(
    (offset_s + period_s * period + at, f"m-{number}")
    for number, (period_s, offset_s) in enumerate([(60, 5), (40, 17)])
    for period in range(15)
    for at in range(3)
)


@pytest.mark.parametrize("tick_s", [0.5, 2.0])
def test_two_periodic_models_with_one_place_take_turns_as_without_plans(tick_s: float) -> None:
    """Plans add no cold starts, however often they are made."""
    rows = [row for row in _PERIODIC if row[0] < 250.0]
    cold, loads, _ = _short_of_memory(rows, 1, models=2, tick_s=None)
    assert cold > 2
    planned_cold, planned_loads, _ = _short_of_memory(rows, 1, models=2, tick_s=tick_s)
    assert planned_cold <= cold
    assert planned_loads <= loads


@pytest.mark.parametrize("tick_s", [0.5, 2.0])
def test_predictive_moves_no_models_of_about_equal_value(tick_s: float) -> None:
    """Two periodic models with one place; three with two places whose arrivals are random."""
    for rows, places, models in (
        (_PERIODIC, 1, 2),
        (_poisson([0.05, 0.03, 0.02], 700.0, seed=1), 2, 3),
    ):
        cold, loads, _ = _short_of_memory(rows, places, models=models, tick_s=None)
        with_plans = _short_of_memory(rows, places, models=models, tick_s=tick_s)
        assert with_plans[0] <= 1.05 * cold
        assert with_plans[1] <= 1.1 * loads


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_forecast_that_is_wrong_by_ten_times_costs_at_most_a_tenth(factor: float) -> None:
    rows = _poisson([0.1 / (number + 1) for number in range(6)], 400.0, seed=2)
    *_, mean_s = _short_of_memory(rows, 3, models=6, tick_s=None)
    *_, wrong_s = _short_of_memory(rows, 3, models=6, tick_s=0.5, factor=factor)
    assert wrong_s <= 1.1 * mean_s


@pytest.mark.parametrize("is_planned", [False, True])
def test_run_stops_while_nothing_arrives(is_planned: bool) -> None:
    plan = cluster({})
    scaler = PlannedAutoscaler(keep_alive(), plan, every_s=30.0) if is_planned else None
    asked: list[float] = []
    simulation = Simulation(plan, trace([(0.0, "m"), (1e6, "m")]), autoscaler=scaler)

    def is_stopping() -> bool:
        asked.append(simulation.events.now_s)
        return len(asked) > 10

    simulation.is_stopping = is_stopping
    assert [row["scheduled_s"] for row in records(simulation)] == [0.0]
    assert simulation.was_stopped
    assert simulation.events.now_s <= 600.0


@pytest.mark.parametrize(
    "name", [name for name, make in LOADING_POLICIES.items() if not make().reads_demand]
)
def test_policies_without_demand_plan_the_same_without_forecasts(name: str) -> None:
    plan = cluster({"pods": [{"memory": "250MB"}]}, {"name": "m", "count": 3})
    rows: list[Row] = [(7.0 * at, f"m-{at * at % 3}") for at in range(20)]
    found = []
    for is_forecasting in (False, True):
        policy = replace(LOADING_POLICIES[name](), reads_demand=is_forecasting)
        scaler = PlannedAutoscaler(policy, plan, every_s=3.0)
        found.append((records(Simulation(plan, trace(rows), autoscaler=scaler)), scaler.actions))
    assert found[0] == found[1]
