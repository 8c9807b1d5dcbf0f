"""The placement of a pool with a real registry: plans, places, and latencies above the plan's."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler import place
from autoscaler.forecasting.forecasts import Demand
from autoscaler.forecasting.history import Forecast, ForecastHorizon
from autoscaler.metrics import AutoscalerMetrics
from autoscaler.place import PlacementService
from autoscaler.placement.placed_pods import has_arrived
from autoscaler.settings import AutoscalerSettings
from registry.domain.model import Tier
from registry.domain.pod import Accelerator, PodInfo, PodReport, Profile, ProfilePoint, Samples
from registry.domain.records import PlacementRecord
from registry.redis.reports import AutoscalerLog
from registry.redis.watch import ClusterWatch
from tests.autoscaler.conftest import Stage, metric, model
from tests.autoscaler.views import model as model_view
from tests.autoscaler.views import pool
from tests.plug_ins import install, path_of_plug_ins
from tests.registry.redis.clients import eventually, running, until

pytestmark = pytest.mark.slow

PACE = 30.0
"""A minute of the service in two seconds."""
SPEC = model("a", deadline_s=1.0)
NAME = str(SPEC.name)
EPYC = Accelerator(product="EPYC", memory_bytes=4000, cores=2)
SERVICE_S = 0.05
RATE_RPS = 8.0


class Driver:
    """Ticks the service of a leader, and plays the pods that its record wants."""

    def __init__(self, stage: Stage, watch: ClusterWatch, **settings: Any) -> None:
        self.stage, self.watch = stage, watch
        self.log = AutoscalerLog(stage.registry)
        chosen = replace(AutoscalerSettings(placement="ao-milp", pace=PACE), **settings)
        self.metrics = AutoscalerMetrics()
        self.service = PlacementService(chosen, self.log, self.metrics)
        self.epochs: dict[str, int] = {}
        self.infer_s = SERVICE_S
        self.plays_pods = not chosen.kubernetes
        self.is_fenced = False
        """Its token is that of an earlier lead."""
        self.later_s = 0.0
        """By how much its clock is ahead."""

    async def tick(self) -> PlacementRecord | None:
        horizon = ForecastHorizon()
        shape = (1, len(horizon.windows_s), len(horizon.probabilities))
        values = np.full(shape, 60 * RATE_RPS / PACE)
        demand = Demand(
            None, horizon, Forecast(values[:, :, 0], values, values[:, :, 0]), np.ones(1)
        )
        now_s = PACE * self.watch.registry_now_s() + self.later_s
        view = replace(pool([], [model_view("a")], demand=demand), time_s=now_s)
        token = await self.log.acquire_lead("one", ttl_s=60)
        assert token is not None
        token -= self.is_fenced
        await self.service.tick(self.watch.state, view, {}, token)
        record = self.watch.state.placement
        for each in record.pods if record and self.plays_pods else ():
            await self.play(each.name)
        return record

    async def play(self, place: str) -> None:
        """A pod with the place, its model warm, that reports inferences of `infer_s`."""
        registry = self.stage.registry
        if place not in self.epochs:
            info = PodInfo(
                f"pod-of-{place}",
                f"{place}:1",
                "n",
                accelerator=EPYC,
                place=place,
                placed_model=NAME,
            )
            self.epochs[place] = await registry.register_pod(info, lease_ttl_s=600)
            await registry.set_tier(info.name, self.epochs[place], SPEC.key, Tier.DEVICE, 100)
        samples = (Samples(SPEC.key, "infer", (self.infer_s,) * 8),)
        await registry.heartbeat(
            f"pod-of-{place}", self.epochs[place], PodReport(samples=samples), lease_ttl_s=600
        )


@contextlib.asynccontextmanager
async def driving(stage: Stage, **settings: Any) -> AsyncIterator[Driver]:
    await stage.registry.put_models([SPEC])
    points = (ProfilePoint(1, SERVICE_S, memory_bytes=10),)
    assert await stage.registry.put_profile(Profile(SPEC.key, "EPYC", points))
    info = PodInfo("plain", "plain:1", "n", accelerator=EPYC)
    await stage.registry.register_pod(info, lease_ttl_s=600)
    watch = ClusterWatch(stage.registry)
    async with running(watch):
        await watch.wait_synced()
        yield Driver(stage, watch, **settings)


async def test_a_new_lead_gives_pods_their_time_to_start(stage: Stage) -> None:
    """How long they were cold before it, while another led, counts nothing."""
    async with driving(stage, cpu_accelerators="cpu-0") as driver:
        driver.plays_pods = False

        async def has_pods() -> bool:
            record = await driver.tick()
            return bool(record and record.pods)

        await eventually(has_pods, timeout_s=60, what="the pods of a plan")
        await driver.tick()
        driver.later_s = 1000.0
        driver.service.start_over()
        await driver.tick()
        assert await has_pods()
        driver.later_s = 2000.0
        await driver.tick()
        assert not await has_pods()


SLOW = """
import threading

begun = threading.Semaphore(0)
may_end = threading.Event()

def plan(*_):
    begun.release()
    may_end.wait(60)
    raise RuntimeError
"""


async def test_a_plan_of_an_earlier_lead_ends_before_another_begins(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_CHECK_INTERVAL_S", 0.0)
    install(tmp_path, "slowplan", "pilotlight.placement", {"slow": "slowplan:plan"}, SLOW)
    with path_of_plug_ins(tmp_path):
        slow = import_module("slowplan")
        async with driving(stage, cpu_accelerators="cpu-0", placement="slow") as driver:

            async def begins() -> bool:
                await driver.tick()
                return bool(slow.begun.acquire(blocking=False))

            await eventually(begins)
            for _ in range(5):
                driver.service.start_over()
                await driver.tick()
            assert not await begins()
            slow.may_end.set()
            await eventually(begins)


async def test_a_minute_of_latency_above_the_prediction_brings_a_new_plan(stage: Stage) -> None:
    async with driving(stage, cpu_accelerators="cpu-0,cpu-1") as driver:

        async def has_one_copy() -> bool:
            record = await driver.tick()
            return record is not None and len(record.pods) == 1 and has_arrived(record)

        await eventually(has_one_copy)

        async def has_two_copies() -> bool:
            record = await driver.tick()
            return record is not None and len(record.target) == 2

        driver.infer_s = 4 * SERVICE_S
        await eventually(has_two_copies)
        record = driver.watch.state.placement
        assert record is not None
        assert record.reason.startswith(f"latency exceeds the prediction for 60 s: {NAME} (")
        assert record.latency_scales == {NAME: pytest.approx(4.0, rel=0.1)}
        history = (await driver.log.records()).history
        assert "latency exceeds" in history[0].detail


async def test_on_a_cluster_accelerators_of_pods_that_start_anew_are_awaited(stage: Stage) -> None:
    """The only pod of an accelerator takes its place by a new start, without which it is gone."""
    async with driving(stage, kubernetes=True) as driver:
        info = PodInfo("pod", "pod:1", "n", accelerator=EPYC, takes_places="node-1")
        epoch = await stage.registry.register_pod(info, lease_ttl_s=600)

        async def has_a_place() -> bool:
            record = await driver.tick()
            return record is not None and len(record.pods) == 1

        await eventually(has_a_place)
        place = await stage.registry.take_place("pod", "node-1")
        assert place is not None
        assert (place.replica.model, place.replica.accelerator) == (NAME, "node-1")
        await stage.registry.deregister_pod("pod", epoch)
        await until(lambda: "pod" not in driver.watch.state.pods)
        kept = await driver.tick()
        assert kept is not None
        assert [each.name for each in kept.pods] == [place.name]
        placed = replace(info, place=place.name, placed_model=NAME)
        epoch = await stage.registry.register_pod(placed, lease_ttl_s=600)
        await stage.registry.set_tier("pod", epoch, SPEC.key, Tier.DEVICE, 100)
        await until(lambda: "pod" in driver.watch.state.pods)
        record = await driver.tick()
        assert record is not None
        assert [each.name for each in record.pods] == [place.name]
        assert has_arrived(record)


async def test_the_last_plan_serves_on_where_a_planner_fails(stage: Stage) -> None:
    async with driving(stage, cpu_accelerators="cpu-0") as driver:

        async def has_one_copy() -> bool:
            record = await driver.tick()
            return record is not None and len(record.pods) == 1 and has_arrived(record)

        await eventually(has_one_copy)
        before = driver.watch.state.placement
        failing = Driver(stage, driver.watch, cpu_accelerators="cpu-0", placement="not-installed")
        failing.epochs = driver.epochs

        async def is_counted() -> bool:
            await failing.tick()
            name = "pilotlight_autoscaler_failures_total"
            return metric(failing.metrics, name, cause="planner") == 1

        await eventually(is_counted)
        assert driver.watch.state.placement == before


async def test_a_plan_that_was_not_recorded_is_made_again(stage: Stage) -> None:
    async with driving(stage, kubernetes=True) as driver:
        info = PodInfo("pod", "pod:1", "n", accelerator=EPYC, takes_places="node-1")
        epoch = await stage.registry.register_pod(info, lease_ttl_s=600)

        async def is_placed_on(node: str) -> bool:
            record = await driver.tick()
            return record is not None and {each.replica.accelerator for each in record.pods} == {
                node
            }

        await eventually(partial(is_placed_on, "node-1"))
        await stage.registry.deregister_pod("pod", epoch)
        other = replace(info, name="other", address="other:1", takes_places="node-2")
        await stage.registry.register_pod(other, lease_ttl_s=600)
        await until(lambda: "other" in driver.watch.state.pods)
        driver.is_fenced = True
        name = "pilotlight_autoscaler_placement_seconds_count"
        planned = metric(driver.metrics, name)

        async def is_planned() -> bool:
            assert not await is_placed_on("node-2")
            return metric(driver.metrics, name) > planned

        await eventually(is_planned)
        driver.is_fenced = False
        await eventually(partial(is_placed_on, "node-2"), timeout_s=20)


async def test_a_pod_that_cannot_start_ends_the_plan(stage: Stage) -> None:
    async with driving(stage, cpu_accelerators="cpu-0") as driver:
        driver.plays_pods = False

        async def is_given_up() -> bool:
            record = await driver.tick()
            return record is not None and record.pods == () and "not warm" in record.reason

        await eventually(is_given_up)
