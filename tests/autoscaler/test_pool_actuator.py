"""The advice to other scalers, of a pool whose cluster fails or whose lead is lost."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from autoscaler.metrics import AutoscalerMetrics
from autoscaler.pool_actuator import PoolActuator
from controller.api import Denied
from controller.pool_scaler import ObservedPool
from controller.pool_size import Owner, PoolObject, ScaledElsewhere
from registry.domain.pool_demand import PoolAdvice
from registry.domain.records import PodShape, WantedPods
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests.registry.redis.clients import until

POOL = PoolObject("pilotlight", "pool", "pool-predictor", "Standard", "external", 0, 4)


@dataclass
class Cluster:
    """In place of a cluster's API: a pool that a ScaledObject scales."""

    error: Exception | None = None
    costs: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: deletion costs can be written."""
    writes: int = 0

    async def observe(self, pool: str) -> ObservedPool:
        if self.error is not None:
            raise self.error
        return ObservedPool(pool, POOL, ScaledElsewhere(Owner.COMPETING_SCALER, "theirs"), pods=3)

    async def set_deletion_costs(self, *_: Any) -> None:
        self.writes += 1
        await self.costs.wait()

    async def post_event(self, *_: Any, **__: Any) -> None:
        pass


async def test_there_is_no_advice_of_a_cluster_that_fails_or_a_lead_that_is_lost() -> None:
    cluster, watch = Cluster(), ClusterWatch(Registry("redis://127.0.0.1:1", "default"))
    parts: Any = cluster
    actuator = PoolActuator("default", parts, parts, watch, AutoscalerMetrics(), lease_s=60)
    task = asyncio.create_task(actuator.run())
    actuator.set_leading(is_leading=True)
    actuator.scale_to(WantedPods((PodShape(2),)))
    await until(lambda: cluster.writes == 1, what="deletion costs are written")
    actuator.set_leading(is_leading=False)
    cluster.costs.set()
    for _ in range(5):  # the step ends
        await asyncio.sleep(0)
    assert actuator.advice() is None
    actuator.set_leading(is_leading=True)
    actuator.scale_to(WantedPods((PodShape(2),)))
    await until(lambda: actuator.advice() == PoolAdvice(2, "pilotlight"), what="the advice")
    cluster.error = Denied("cut off")
    actuator.scale_to(WantedPods((PodShape(1),)))
    await until(lambda: actuator.advice() is None, what="the advice ends")
    task.cancel()
