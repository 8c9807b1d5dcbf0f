"""The planner: forecasts when due, arrivals of one plan, mistakes of policies."""

import pytest

from autoscaler.forecast import DemandForecaster, ForecastSchedule
from autoscaler.forecasting.counts import Counts, ObservedDemand
from autoscaler.loading.loading_policies import policy_of
from autoscaler.plan import Planner, scale_times
from autoscaler.planning.desired_pods import ScalingState
from autoscaler.planning.policy import Action, ActionReason, Demote, Load, LoadingPolicy, SetPods
from autoscaler.planning.pool_view import Limits, Observations, PoolView
from load.simulator.registry.memory_registry import MemoryRegistry
from registry.domain.cluster import ClusterState
from registry.domain.demand import ArrivalHint, QueueStats
from registry.domain.model import LoadFailure, ModelName, ModelSpec, Tier
from registry.domain.pod import PodInfo
from registry.domain.records import ActionRecord
from tests.autoscaler.views import NOW_S, model, pod, pool

M = ModelSpec(ModelName("default", "m"), "s3://models/m")
SCALE = 60.0


def _state() -> ClusterState:
    registry = MemoryRegistry()
    registry.put_models([M], 0.0)
    registry.register_pod(PodInfo("pod", "10.0.0.1:1", node="node", memory_bytes=10**9), 0.0)
    return registry.state


def _load(view: PoolView, plans: int) -> tuple[tuple[Action, ...], int]:
    """Fails at its second plan; the reason shows how many plans there were."""
    if plans == 1:
        raise ZeroDivisionError("a mistake of the policy")
    detail = f"plan {plans}"
    return (Load(M.key, "pod", Tier.DEVICE, ActionReason.FORECAST, detail),), plans + 1


def _planner(observed: ObservedDemand) -> Planner:
    forecasts = ForecastSchedule(observed, DemandForecaster())
    return Planner(LoadingPolicy("counting", 0, _load), observed, forecasts)


def test_a_policy_that_fails_starts_over_and_pods_are_planned_all_the_same() -> None:
    planner, state = _planner(ObservedDemand(Counts())), _state()
    planner.scaling = ScalingState(current=1)
    first, failed, third = (
        planner.plan(state, float(at), Observations(), limits=Limits(pods, 9))
        for at, pods in enumerate((1, 2, 3))
    )
    assert [each.detail for each in first.actions] == ["plan 0"]
    assert isinstance(failed.failure, ZeroDivisionError)
    assert [type(each) for each in failed.actions] == [SetPods]
    assert [each.detail for each in third.actions] == ["at least 3 pods", "plan 0"]


def test_arrivals_count_for_one_plan() -> None:
    observed = ObservedDemand(None)
    planner, state = _planner(observed), _state()
    observed.set_models([M.name], 7.0)
    observed.add([(M.name, 5.0, 2), (M.name, 6.0, 1)])
    observed.add([(M.name, 1.0, 9)], is_new=False)
    views = [planner.plan(state, 7.0, Observations()).view for _ in range(2)]
    assert [view.models[0].arrived for view in views] == [3, 0]
    assert [view.models[0].last_arrival_s for view in views] == [6.0, 6.0]


def test_a_forecast_is_kept_until_the_next_one_is_due() -> None:
    observed = ObservedDemand(Counts())
    planner, state = _planner(observed), _state()
    demands = []
    for now_s in (3600.0, 3600.5, 3602.0):
        observed.set_models([M.name], now_s)
        observed.add([(M.name, now_s, 5)])
        demands.append(planner.plan(state, now_s, Observations()).view.demand)
    assert demands[0] is not None
    assert demands[1] is demands[0]
    assert demands[2] is not demands[0]


def test_announced_arrivals_raise_the_demand_at_each_tick() -> None:
    observed = ObservedDemand(Counts())
    planner, state = _planner(observed), _state()
    observed.set_models([M.name], 3600.0)
    observed.add([(M.name, 3600.0, 5)])
    hint = ArrivalHint(M.name, 1.0, 3610.0)
    plans = [
        planner.plan(state, at_s, Observations(), hints=hints)
        for at_s, hints in ((3600.0, [hint]), (3600.5, []), (3601.0, [hint]))
    ]
    expected = [plan.view.demand.p_minute[0] for plan in plans if plan.view.demand is not None]
    assert expected[0] == expected[2] == 1.0
    assert expected[1] < 1.0


def test_no_forecast_of_models_that_are_not_counted_yet() -> None:
    observed = ObservedDemand(Counts())
    assert _planner(observed).plan(_state(), 5.0, Observations()).view.demand is None


@pytest.mark.parametrize("is_paused", [False, True])
def test_the_view_has_ongoing_loads_and_no_paused_pod(*, is_paused: bool) -> None:
    planner = _planner(ObservedDemand(None))
    load = ActionRecord("load", str(M.name), "forecast", "", 0.0, pod="pod", tier=str(Tier.DEVICE))
    view = planner.plan(
        _state(), 5.0, Observations(), ongoing=[load], paused={"pod"} if is_paused else ()
    ).view
    assert view.models[0].holders["pod"].is_warming
    assert view.pods["pod"].is_accepting is not is_paused


def idle_for(idle_s: float) -> PoolView:
    """A warm model without requests for this time."""
    warm = model(at={"p": Tier.DEVICE}, last_arrival_s=NOW_S - idle_s)
    return pool([pod()], [warm])


def is_demoted(view: PoolView, minutes: float) -> bool:
    actions, _ = policy_of("keep-alive", minutes).plan(view, None)
    return [type(each) for each in actions] == [Demote]


@pytest.mark.parametrize(("idle_s", "is_gone"), [(9.5, False), (10.5, True)])
def test_a_keep_alive_of_ten_minutes_takes_ten_seconds_at_scale_60(
    idle_s: float, is_gone: bool
) -> None:
    view = idle_for(idle_s)
    assert is_demoted(scale_times(view, SCALE), 10) is is_gone
    assert not is_demoted(scale_times(view, 1), 10)
    assert is_demoted(view, 1 / 60 * 9)


def test_scales_all_times() -> None:
    failure = LoadFailure("k", "ModelLoadFailed", "no", attempts=1, retry_at_s=NOW_S + 1)
    waiting = QueueStats(requests=1, oldest_s=NOW_S - 2)
    view = scale_times(pool([pod()], [model(waiting=waiting, failure=failure)]), SCALE)
    [scaled] = view.models
    assert view.time_s - scaled.waiting.oldest_s == pytest.approx(2 * SCALE)
    assert not scaled.may_load(view.time_s + 59)
    assert scaled.may_load(view.time_s + 61)
    assert scaled.load_s[Tier.REMOTE] == 10.0 * SCALE
    assert scaled.infer_s == pytest.approx(0.1 * SCALE)
