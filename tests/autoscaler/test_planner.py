"""The planner: forecasts when due, arrivals of one plan, mistakes of policies."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autoscaler.desired_pods import ScalingState
from autoscaler.forecast import DemandForecaster, Forecasts
from autoscaler.forecasting.counts import Counts, ObservedDemand
from autoscaler.loading_policies import policy_of
from autoscaler.observe import read_pool
from autoscaler.plan import Planner, TickPlan
from autoscaler.policy import (
    Action,
    ActionReason,
    CopyUse,
    Demote,
    Limits,
    Load,
    LoadingPolicy,
    PoolView,
    SetPods,
)
from load.simulator.memory_registry import MemoryRegistry
from registry.domain.cluster import ClusterState
from registry.domain.demand import ArrivalHint, QueueStats
from registry.domain.model import LoadFailure, ModelName, ModelSpec, Tier
from registry.domain.pod import PodInfo
from registry.domain.records import ActionRecord
from tests.autoscaler.views import NOW_S

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


class Ticks:
    """The steps of a tick, as the loop and the simulator call them."""

    def __init__(self, counts: Counts | None = None) -> None:
        self.observed = ObservedDemand(counts)
        self.forecasts = Forecasts(self.observed, DemandForecaster())
        self.planner = Planner(LoadingPolicy("counting", 0, _load))
        self.state = _state()

    def tick(
        self,
        now_s: float,
        *,
        hints: Sequence[ArrivalHint] = (),
        limits: Limits | None = None,
        **seen: Any,
    ) -> TickPlan:
        arrived, last_s = self.observed.take_arrived(), self.observed.last_arrival_s
        seen |= {"arrived": arrived, "last_arrival_s": last_s, "limits": limits or Limits()}
        view = read_pool(self.state, now_s, **seen)
        demand = self.forecasts.demand(view.names, now_s, hints)
        return self.planner.plan(replace(view, demand=demand))


def test_a_policy_that_fails_starts_over_and_pods_are_planned_all_the_same() -> None:
    ticks = Ticks(Counts())
    ticks.planner.scaling = ScalingState(current=1)
    first, failed, third = (
        ticks.tick(float(at), limits=Limits(pods, 9)) for at, pods in enumerate((1, 2, 3))
    )
    assert [each.detail for each in first.actions] == ["plan 0"]
    assert isinstance(failed.failure, ZeroDivisionError)
    assert [type(each) for each in failed.actions] == [SetPods]
    assert [each.detail for each in third.actions] == ["at least 3 pods", "plan 0"]


def test_arrivals_count_for_one_plan() -> None:
    ticks = Ticks()
    ticks.observed.set_models([M.name], 7.0)
    ticks.observed.add([(M.name, 5.0, 2), (M.name, 6.0, 1)])
    ticks.observed.add([(M.name, 1.0, 9)], is_new=False)
    views = [ticks.tick(7.0).view for _ in range(2)]
    assert [view.models[0].arrived for view in views] == [3, 0]
    assert [view.models[0].last_arrival_s for view in views] == [6.0, 6.0]


def test_a_forecast_is_kept_until_the_next_one_is_due() -> None:
    ticks = Ticks(Counts())
    demands = []
    for now_s in (3600.0, 3600.5, 3602.0):
        ticks.observed.set_models([M.name], now_s)
        ticks.observed.add([(M.name, now_s, 5)])
        demands.append(ticks.tick(now_s).view.demand)
    assert demands[0] is not None
    assert demands[1] is demands[0]
    assert demands[2] is not demands[0]


def test_announced_arrivals_raise_the_demand_at_each_tick() -> None:
    ticks = Ticks(Counts())
    ticks.observed.set_models([M.name], 3600.0)
    ticks.observed.add([(M.name, 3600.0, 5)])
    hint = ArrivalHint(M.name, 1.0, 3610.0)
    plans = [
        ticks.tick(at_s, hints=hints)
        for at_s, hints in ((3600.0, [hint]), (3600.5, []), (3601.0, [hint]))
    ]
    expected = [plan.view.demand.p_minute[0] for plan in plans if plan.view.demand is not None]
    assert expected[0] == expected[2] == 1.0
    assert expected[1] < 1.0


def test_no_forecast_of_models_that_are_not_counted_yet() -> None:
    assert Ticks(Counts()).tick(5.0).view.demand is None


@pytest.mark.parametrize("is_paused", [False, True])
def test_the_view_has_ongoing_loads_and_no_paused_pod(*, is_paused: bool) -> None:
    load = ActionRecord("load", str(M.name), "forecast", "", 0.0, pod="pod", tier=str(Tier.DEVICE))
    view = Ticks().tick(5.0, ongoing=[load], paused={"pod"} if is_paused else ()).view
    assert view.models[0].holders["pod"].is_warming
    assert [pod.name for pod in view.accepting] == ([] if is_paused else ["pod"])


def is_demoted(view: PoolView, minutes: float) -> bool:
    actions, _ = policy_of("keep-alive", minutes).plan(view, None)
    return [type(each) for each in actions] == [Demote]


def _view(scale: float, *, failure: LoadFailure | None = None, **seen: Any) -> PoolView:
    """A model on the device of a pod since the time 0."""
    registry = MemoryRegistry()
    registry.put_models([M], 0.0)
    info = PodInfo("pod", "10.0.0.1:1", node="node", memory_bytes=10**9)
    epoch = registry.register_pod(info, 0.0)
    registry.set_tier("pod", epoch, M.key, Tier.DEVICE, 100, 0.0)
    registry.state.models[M.name] = replace(registry.state.models[M.name], failure=failure)
    return read_pool(registry.state, NOW_S, time_scale=scale, **seen)


@pytest.mark.parametrize(("idle_s", "is_gone"), [(9.5, False), (10.5, True)])
def test_a_keep_alive_of_ten_minutes_takes_ten_seconds_at_scale_60(
    idle_s: float, is_gone: bool
) -> None:
    seen = {M.name: NOW_S - idle_s}
    assert is_demoted(_view(SCALE, last_arrival_s=seen), 10) is is_gone
    assert not is_demoted(_view(1.0, last_arrival_s=seen), 10)
    assert is_demoted(_view(1.0, last_arrival_s=seen), 1 / 60 * 9)


def test_scales_all_times() -> None:
    failure = LoadFailure(M.key, "ModelLoadFailed", "no", attempts=1, retry_at_s=NOW_S + 1)
    waiting = {M.name: QueueStats(requests=1, oldest_s=NOW_S - 2)}
    use = {M.key: {"pod": CopyUse(last_s=NOW_S - 3)}}
    views = [_view(scale, failure=failure, waiting=waiting, uses=use) for scale in (1.0, SCALE)]
    [[plain], [scaled]] = (view.models for view in views)
    now_s = views[1].time_s
    assert now_s == SCALE * NOW_S
    assert now_s - scaled.waiting.oldest_s == pytest.approx(2 * SCALE)
    assert now_s - scaled.uses["pod"].last_s == pytest.approx(3 * SCALE)
    assert not scaled.may_load(now_s + 59)
    assert scaled.may_load(now_s + 61)
    assert scaled.load_s[Tier.REMOTE] == pytest.approx(plain.load_s[Tier.REMOTE] * SCALE)
    assert scaled.infer_s == pytest.approx(plain.infer_s * SCALE)
