"""Batch limits of the autoscaler's plan: read from the registry, after annotations."""

import asyncio
from typing import Any

import pytest

from registry.domain.model import ModelPolicy
from registry.domain.pod import Accelerator, AcceleratorKind, PodInfo
from registry.domain.records import POOL, ActionRecord, PodShape, WantedPods
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from registry.redis.watch import ClusterWatch
from runtime.device.batch_times import INITIAL_MAX_ROWS, BatchTimes
from runtime.device.queue import DeviceModel, batch_cap
from runtime.profiling import ProfileSync
from tests import servers
from tests.registry.redis.clients import until

KEY = "default/m@1"


@pytest.mark.parametrize(
    ("annotated", "planned", "chosen"),
    [
        pytest.param(3, 5, 3, id="annotation-first"),
        pytest.param(None, 5, 5, id="plan-before-measurements"),
        pytest.param(None, None, 7, id="measurements"),
    ],
)
def test_annotation_before_plan_before_measurements(
    annotated: int | None, planned: int | None, chosen: int
) -> None:
    assert batch_cap(annotated=annotated, planned=planned, measured=7) == chosen


async def test_a_pod_follows_the_plan_for_its_kind_until_it_ends(
    redis: servers.RedisServer,
) -> None:
    registry = await Registry.connect(redis.url, "planned-batches")
    watch, log, times = ClusterWatch(registry), AutoscalerLog(registry), BatchTimes()
    info = PodInfo("pod", "10.0.0.1:1", "node", accelerator=Accelerator(product="A100"), share=0.5)
    unused: Any = None
    ProfileSync(times, watch=watch, agent=unused, info=info, interval_s=60.0)
    watching = asyncio.create_task(watch.run())
    try:
        token = await log.acquire_lead("autoscaler", ttl_s=600.0)
        assert token is not None
        scale = ActionRecord("scale", POOL, "forecast", "", 0.0)
        shapes = (
            PodShape(1, AcceleratorKind("A100", 0.5), ((KEY, 12),)),
            PodShape(2, AcceleratorKind("T4"), ((KEY, 3),)),
            PodShape(1, batch_caps=(("default/other@1", 2),)),
        )
        assert await log.set_wanted_pods(token, WantedPods(shapes), scale)
        await until(lambda: times.planned_rows == {KEY: 12, "default/other@1": 2})
        model = DeviceModel(KEY)
        assert model.limits(times).max_rows == 12
        model.policy = ModelPolicy(max_batch_size=5)
        assert model.limits(times).max_rows == 5
        assert await log.set_wanted_pods(token, WantedPods((PodShape(4),)), scale)
        await until(lambda: times.planned_rows == {})
        assert DeviceModel(KEY).limits(times).max_rows == INITIAL_MAX_ROWS
    finally:
        watching.cancel()
        await registry.close()
