"""The running autoscaler: acts once, takes over, survives errors."""

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from autoscaler.forecasting.forecasts import Demand, FittedModel, forecast_demand
from autoscaler.forecasting.history import ForecastHorizon, History
from autoscaler.loading_policies import LOADING_POLICIES
from autoscaler.policy import Action, ActionReason, CopyUse, Load, LoadingPolicy, PoolView
from registry.domain.demand import QueueStats
from registry.domain.model import ModelName, ModelSpec, Preload, Tier
from registry.domain.pod import CopyReport, PodReport
from registry.domain.pod_state import ANY_COPIES
from registry.domain.records import ActionOutcome
from registry.domain.tenant_rules import parse_rules
from registry.redis.client import Registry
from registry.redis.reports import ArrivalLog, AutoscalerLog
from registry.redis.watch import ClusterWatch
from tests import servers
from tests.autoscaler.conftest import Pod, Stage, a_stage, metric, model
from tests.registry.redis.clients import eventually, running, until

LIMIT_S = 120.0


def load_everywhere(*names: str) -> LoadingPolicy[None]:
    """Loads these models on every accepting pod, at every tick."""

    def plan(view: PoolView, state: None) -> tuple[tuple[Action, ...], None]:
        actions = tuple(
            Load(each.key, pod.name, Tier.DEVICE, ActionReason.FORECAST, "needed everywhere")
            for each in view.models
            for pod in view.pods.values()
            if each.spec.name.name in names and pod.is_accepting and pod.name not in each.holders
        )
        return actions, state

    return LoadingPolicy("everywhere", None, plan)


async def _hold(stage: Stage, pod: Pod, spec: ModelSpec) -> None:
    token = await stage.registry.claim_load(pod.name, pod.epoch, spec.key, ANY_COPIES)
    assert token is not None
    await stage.registry.start_load(pod.name, pod.epoch, spec.key, token, Tier.REMOTE)
    await stage.registry.finish_load(pod.name, pod.epoch, spec.key, token, 100)


async def test_a_namespace_has_one_quota_of_memory_on_all_pods(stage: Stage) -> None:
    """Two pods and two namespaces: what one has too much leaves, wherever it is."""
    pods = [await stage.pod(name) for name in ("p", "q")]
    own = [model(name) for name in ("a", "b")]
    other = ModelSpec(ModelName("other", "o"), "s3://models/o")
    await stage.registry.put_models([*own, other])
    for spec in (*own, other):
        for pod in pods:
            await _hold(stage, pod, spec)  # 100 bytes each
    plans: list[PoolView] = []

    def load_all(view: PoolView, state: None) -> tuple[tuple[Action, ...], None]:
        plans.append(view)
        return tuple(
            Load(each.key, pod, Tier.DEVICE, ActionReason.FORECAST, "needed everywhere")
            for each in view.models
            for pod in view.pods
            if not each.holders[pod].is_warm
        ), state

    policy = LoadingPolicy("all", None, load_all)
    await stage.registry.put_rules(parse_rules(quotas="default=memory:250"))
    async with stage.autoscaler(policy):

        async def is_within() -> bool:
            return len(await _warm(stage, "a")) + len(await _warm(stage, "b")) == 2

        await eventually(is_within, timeout_s=LIMIT_S, what="200 of 250 bytes in use")
        made = len(plans)
        await until(lambda: len(plans) > made + 5, timeout_s=LIMIT_S, what="plans to load again")
        assert await is_within()
    assert sorted(name for pod in pods for name in pod.unloads) == ["a", "a"]
    state = await stage.registry.cluster()
    assert {pod for pod, each in state.holders(other.key).items() if each.is_warm} == {"p", "q"}


async def _warm(stage: Stage, name: str) -> set[str]:
    state = await stage.registry.cluster()
    return {pod for pod, each in state.holders(model(name).key).items() if each.is_warm}


async def test_carries_out_an_action_once_and_records_its_reason(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="autoscaler")
    await stage.registry.put_models([model("a")])
    pod = await stage.pod("pod-a")
    async with stage.autoscaler(load_everywhere("a")) as metrics:
        await until(
            lambda: metric(
                metrics,
                "pilotlight_autoscaler_actions_total",
                verb="load",
                reason="forecast",
                outcome="done",
            ),
            timeout_s=LIMIT_S,
            what="the action counted",
        )
    assert await _warm(stage, "a") == {"pod-a"}
    assert pod.loads == ["a"]
    last = (await AutoscalerLog(stage.registry).records()).last_by_model["default/a"]
    assert (last.verb, last.pod, last.reason, last.detail, last.outcome) == (
        "load",
        "pod-a",
        "forecast",
        "needed everywhere",
        ActionOutcome.DONE,
    )
    [line] = [each for each in caplog.records if each.message == "load"]
    assert (
        vars(line).items()
        >= {
            "model": "default/a",
            "pod": "pod-a",
            "reason": "forecast",
            "words": "needed everywhere",
        }.items()
    )


async def test_plans_see_the_use_of_every_copy(stage: Stage) -> None:
    """Of one model at two pods, as heartbeats report it; published to no gateway."""
    await stage.registry.put_models([model("a")])
    pods = [await stage.pod(name) for name in ("pod-a", "pod-b")]
    for pod in pods:
        await stage.registry.set_tier(pod.name, pod.epoch, model("a").key, Tier.DEVICE, 100)
    await pods[0].beat(PodReport(copies={model("a").key: CopyReport(1, 7, 2.0)}))
    await pods[1].beat(PodReport(copies={model("a").key: CopyReport()}))
    views: list[PoolView] = []

    def plan(view: PoolView, state: None) -> tuple[tuple[Action, ...], None]:
        views.append(view)
        return (), state

    def is_seen() -> bool:
        return any(each.uses for view in views for each in view.models)

    async with stage.autoscaler(LoadingPolicy("watcher", None, plan)):
        await until(is_seen, timeout_s=LIMIT_S, what="the use of copies in a view")
    [seen] = views[-1].models
    assert (seen.uses["pod-a"].ongoing, seen.uses["pod-a"].served) == (1, 7)
    assert seen.uses["pod-b"] == CopyUse()
    now_s = views[-1].time_s
    assert now_s - 60 < seen.uses["pod-a"].last_s < now_s - 1.9


async def test_one_of_two_autoscalers_acts(stage: Stage) -> None:
    await stage.registry.put_models([model("a"), model("b")])
    pods = [await stage.pod(f"pod-{index}") for index in range(3)]
    policy = load_everywhere("a", "b")
    async with stage.autoscaler(policy), stage.autoscaler(policy):

        async def is_done() -> bool:
            return all([len(await _warm(stage, name)) == 3 for name in "ab"])

        await eventually(is_done, timeout_s=LIMIT_S, what="all loaded")
    assert [sorted(pod.loads) for pod in pods] == [["a", "b"]] * 3


async def test_a_successor_does_not_repeat_a_load(stage: Stage) -> None:
    await stage.registry.put_models([model("a"), model("b")])
    pod = await stage.pod("pod-a", holds=True)
    async with stage.autoscaler(load_everywhere("a")):
        await until(lambda: pod.loads == ["a"], timeout_s=LIMIT_S, what="the load to start")
    async with stage.autoscaler(load_everywhere("a", "b")):
        await until(lambda: "b" in pod.loads, timeout_s=LIMIT_S, what="the second one to take over")
        pod.hold.set()

        async def is_warm() -> bool:
            return bool(await _warm(stage, "a") and await _warm(stage, "b"))

        await eventually(is_warm, timeout_s=LIMIT_S, what="both warm")
    assert sorted(pod.loads) == ["a", "b"]


async def test_a_model_whose_load_fails_does_not_block_others(stage: Stage) -> None:
    await stage.registry.put_models([model("a"), model("b")])
    pod = await stage.pod("pod-a")
    pod.fails = {"a"}
    async with stage.autoscaler(load_everywhere("a", "b")) as metrics:

        async def is_warm() -> bool:
            return bool(await _warm(stage, "b"))

        await eventually(is_warm, timeout_s=LIMIT_S, what="the other model warm")
        await until(
            lambda: (
                metric(
                    metrics,
                    "pilotlight_autoscaler_skipped_actions_total",
                    verb="load",
                    cause="refused",
                )
                >= 5
            ),
            timeout_s=LIMIT_S,
            what="five plans without it",
        )
    plans = await AutoscalerLog(stage.registry).records()
    assert plans.last_by_model["default/a"].outcome == ActionOutcome.FAILED
    assert "503" in plans.last_by_model["default/a"].error


async def test_a_refused_claim_is_no_failed_load(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.registry.put_models([model("a")])
    (await stage.pod("pod-a")).refuses_claims = True
    log = AutoscalerLog(stage.registry)
    async with stage.autoscaler(load_everywhere("a")):

        async def has_ended() -> bool:
            last = (await log.records()).last_by_model.get("default/a")
            return last is not None and last.outcome == ActionOutcome.REFUSED

        await eventually(has_ended, timeout_s=LIMIT_S, what="the refused load recorded")
    assert "load failed" not in caplog.text


async def test_skips_a_pod_that_refuses(stage: Stage) -> None:
    await stage.registry.put_models([model("a")])
    refusing, other = await stage.pod("pod-a"), await stage.pod("pod-b")
    refusing.refuses = True
    async with stage.autoscaler(LOADING_POLICIES["predictive"]()):
        await stage.registry.put_models([model("a", min_copies=1)])

        async def is_warm() -> bool:
            return await _warm(stage, "a") == {"pod-b"}

        await eventually(is_warm, timeout_s=LIMIT_S, what="a load on the other pod")
    assert other.loads == ["a"]


async def test_continues_after_a_registry_outage(own_redis: servers.RedisServer) -> None:
    async with a_stage(own_redis.url) as stage:
        await stage.registry.put_models([model("a")])
        await stage.pod("pod-a")
        async with stage.autoscaler(load_everywhere("b")) as metrics:
            await until(
                lambda: metric(metrics, "pilotlight_autoscaler_is_leader") == 1, timeout_s=LIMIT_S
            )
            own_redis.stop()
            await until(
                lambda: metric(
                    metrics, "pilotlight_autoscaler_failures_total", cause="registry-away"
                ),
                timeout_s=LIMIT_S,
            )
            own_redis.start()

            async def is_declared() -> bool:
                try:
                    return bool(await stage.registry.put_models([model("b")]))
                except Exception:
                    return False

            await eventually(is_declared, timeout_s=LIMIT_S, what="Redis is back")
            pod = await stage.pod("pod-b")
            await until(lambda: "b" in pod.loads, timeout_s=LIMIT_S, what="the next action")


async def test_survives_an_error_of_the_policy(stage: Stage) -> None:
    await stage.registry.put_models([model("a")])
    pod = await stage.pod("pod-a")
    calls = 0
    good = load_everywhere("a")

    def plan(view: PoolView, state: None) -> tuple[tuple[Action, ...], None]:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ZeroDivisionError("a mistake of the policy")
        return good.plan(view, state)

    async with stage.autoscaler(LoadingPolicy("broken", None, plan)) as metrics:
        await until(lambda: pod.loads == ["a"], timeout_s=LIMIT_S, what="the load")
        assert metric(metrics, "pilotlight_autoscaler_failures_total", cause="policy") == 2


@pytest.mark.parametrize("impossible", [np.nan, np.inf, -5.0, 1e300])
async def test_ignores_an_impossible_forecast(stage: Stage, impossible: float) -> None:
    def broken(history: History, fitted: FittedModel) -> Demand:
        demand = forecast_demand(history, fitted)
        demand.forecast.mean[:] = impossible
        return demand

    await stage.registry.put_models([model("a", preload=Preload.EAGER)])
    pod = await stage.pod("pod-a")
    policy = LOADING_POLICIES["predictive"]()
    async with stage.autoscaler(policy, forecast=broken, min_pods=0) as metrics:
        await until(lambda: pod.loads == ["a"], timeout_s=LIMIT_S, what="the floor")
        await until(
            lambda: metric(
                metrics, "pilotlight_autoscaler_failures_total", cause="absurd-forecast"
            ),
            timeout_s=LIMIT_S,
            what="the forecast ignored",
        )


@pytest.mark.slow
async def test_plans_without_a_forecast_that_fails(stage: Stage) -> None:
    """Whatever it raises: no tick is lost, and no plan is made with the forecast before it."""
    calls = 0

    def fails(history: History, fitted: FittedModel) -> Demand:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise TypeError("a mistake of the forecast")
        return forecast_demand(history, fitted)

    demands: list[Demand | None] = []

    def plan(view: PoolView, state: None) -> tuple[tuple[Action, ...], None]:
        demands.append(view.demand)
        return (), state

    await stage.registry.put_models([model("a")])
    policy = LoadingPolicy("watcher", None, plan, reads_history=True)
    async with stage.autoscaler(policy, forecast=fails) as metrics:
        counted = partial(metric, metrics, "pilotlight_autoscaler_failures_total")
        await until(lambda: any(demands), timeout_s=15, what="the first forecast")
        await until(lambda: calls > 5, timeout_s=15, what="further forecasts")
        await until(lambda: demands[-1] is None, timeout_s=15, what="a plan without one")
        assert counted(cause="tick") == 0
        assert counted(cause="forecast") > 0


async def test_a_queued_request_wakes_one_pod(stage: Stage) -> None:
    await stage.registry.put_models([model("a")])
    async with stage.autoscaler(
        LOADING_POLICIES["predictive"](), min_pods=0, max_pods=5, pod_idle=0.1, pod_stable=0.1
    ):
        scaling = AutoscalerLog(stage.registry)

        async def wants(pods: int) -> bool:
            wanted = (await scaling.ongoing()).wanted
            return wanted is not None and wanted.pods == pods

        await eventually(lambda: wants(0), timeout_s=LIMIT_S, what="no pod wanted")
        waiting = {model("a").name: QueueStats(40, 0, 0.0)}
        await ArrivalLog(stage.registry).report("gateway", 1, [], waiting)
        await eventually(lambda: wants(1), timeout_s=LIMIT_S, what="one pod wanted")
        history = (await scaling.records()).history
        assert history[0].reason == "waiting"
        assert "40 requests wait" in history[0].detail


@pytest.mark.slow
async def test_a_placement_that_fails_does_not_keep_the_pool_large(stage: Stage) -> None:
    """The time for which fewer pods suffice goes on while every placement fails."""

    def one_window(history: History, fitted: FittedModel) -> Demand:
        return forecast_demand(history, fitted, ForecastHorizon((60.0,)))

    await stage.registry.put_models([model("a")])
    await stage.pod("pod-a")
    log = AutoscalerLog(stage.registry)
    async with stage.autoscaler(
        load_everywhere(),
        forecast=one_window,
        placement="predicted-goodput",
        min_pods=0,
        pod_idle=0.1,
        pod_stable=1.0,
    ) as metrics:
        failed = partial(metric, metrics, "pilotlight_autoscaler_failures_total", cause="tick")
        await until(lambda: failed() > 0, timeout_s=LIMIT_S, what="failed placements")

        async def is_small() -> bool:
            wanted = (await log.ongoing()).wanted
            return wanted is not None and wanted.pods == 0

        await eventually(is_small, timeout_s=30, what="no pod wanted")


async def test_the_leader_publishes_expected_arrivals(stage: Stage) -> None:
    """And so does its successor, which overwrites them."""

    def expects(p: float) -> Callable[[History, FittedModel], Demand]:
        def forecast(history: History, fitted: FittedModel) -> Demand:
            demand = forecast_demand(history, fitted)
            demand.p_minute[:] = p
            return demand

        return forecast

    await stage.registry.put_models([model("a")])
    policy = LOADING_POLICIES["keep-alive"]()
    watch = ClusterWatch(await Registry.connect(stage.url, stage.pool))

    def has(p: float) -> bool:
        rates = watch.state.expected_rates.at(watch.registry_now_s())
        return rates.get(model("a").key) == pytest.approx(-math.log(1 - p) / 60, rel=0.01)

    async with running(watch):
        async with stage.autoscaler(policy, forecast=expects(0.5)):
            await until(lambda: has(0.5), timeout_s=LIMIT_S, what="rates of the leader")
            async with stage.autoscaler(policy, forecast=expects(0.9)) as follower:
                await until(
                    lambda: metric(follower, "pilotlight_autoscaler_plan_seconds_count") >= 5,
                    timeout_s=LIMIT_S,
                    what="plans of the follower",
                )
                assert has(0.5)
        async with stage.autoscaler(policy, forecast=expects(0.9)):
            await until(lambda: has(0.9), timeout_s=LIMIT_S, what="rates of the successor")
    await watch.registry.close()


async def test_reports_contradictory_limits(stage: Stage) -> None:
    await stage.registry.put_models([model("a", min_copies=7)])
    await stage.pod("pod-a")
    async with stage.autoscaler(load_everywhere(), min_pods=1, max_pods=2) as metrics:
        scaling = AutoscalerLog(stage.registry)

        async def is_reported() -> bool:
            return "default/a" in (await scaling.records()).last_by_model

        await eventually(is_reported, timeout_s=LIMIT_S, what="the report")
        last = (await scaling.records()).last_by_model["default/a"]
        assert last.verb == "refuse"
        assert "max-pods 2, was 7" in last.detail
        await asyncio.sleep(0)
        refused = metric(
            metrics,
            "pilotlight_autoscaler_actions_total",
            verb="refuse",
            reason="limits",
            outcome="failed",
        )
        assert refused == 1
