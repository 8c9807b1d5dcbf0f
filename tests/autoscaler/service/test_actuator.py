"""An autoscaler whose pods are somebody's who says their bounds and number, as a cluster does."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from autoscaler.loading.loading_policies import LOADING_POLICIES
from autoscaler.planning.pool_view import Limits
from autoscaler.service.actuator import PoolSize
from registry.domain.action_log import WantedPods
from registry.domain.demand import QueueStats
from registry.errors import RegistryUnavailable
from registry.redis.arrivals import ArrivalLog
from registry.redis.autoscaler_log import AutoscalerLog
from tests.autoscaler.service.conftest import metric, model
from tests.registry.actors import eventually, until

if TYPE_CHECKING:
    from tests.autoscaler.service.conftest import Stage

pytestmark = pytest.mark.anyio

LIMIT_S = 120.0


@dataclass
class Cluster:
    """Notes what it is told."""

    given: PoolSize | None
    wanted: list[int] = field(default_factory=list)
    is_led: bool = False
    is_cut_off: bool = False

    def size(self) -> PoolSize | None:
        if self.is_cut_off:
            raise RegistryUnavailable("cut off")
        return self.given

    def set_leading(self, *, is_leading: bool) -> None:
        self.is_led = is_leading

    def scale_to(self, target: WantedPods) -> None:
        self.wanted.append(target.pods)


async def test_starts_from_the_pods_there_are_and_keeps_the_pools_bounds(stage: Stage) -> None:
    cluster = Cluster(PoolSize(Limits(1, 4), pods=3))
    policy = LOADING_POLICIES["predictive"]()
    async with stage.autoscaler(policy, actuator=cluster, pod_stable=0.1, pod_idle=0.1):
        await until(lambda: cluster.wanted[-1:] == [1], timeout_s=LIMIT_S, what="the least")
        cluster.given = PoolSize(Limits(2, 4), pods=1)
        await until(lambda: cluster.wanted[-1:] == [2], timeout_s=LIMIT_S, what="the new least")
        assert cluster.is_led
    assert cluster.wanted == [3, 1, 2]
    wanted = (await AutoscalerLog(stage.registry).ongoing()).wanted
    assert wanted == WantedPods(2)


async def test_what_the_registry_says_does_not_count_where_a_cluster_knows(stage: Stage) -> None:
    policy = LOADING_POLICIES["predictive"]()
    async with stage.autoscaler(policy, min_pods=4):
        scaling = AutoscalerLog(stage.registry)

        async def is_told() -> bool:
            return (await scaling.ongoing()).wanted == WantedPods(4)

        await eventually(is_told, timeout_s=LIMIT_S, what="four are wanted")
    cluster = Cluster(PoolSize(Limits(0, None), pods=2))
    async with stage.autoscaler(policy, actuator=cluster):
        await until(lambda: cluster.wanted, timeout_s=LIMIT_S, what="told")
    assert cluster.wanted == [2]


async def test_what_is_wanted_is_told_again_after_the_registry_was_away(stage: Stage) -> None:
    cluster = Cluster(PoolSize(Limits(2, 2), pods=2))
    async with stage.autoscaler(LOADING_POLICIES["predictive"](), actuator=cluster):
        await until(lambda: cluster.wanted == [2], timeout_s=LIMIT_S, what="told")
        cluster.is_cut_off = True
        await until(lambda: not cluster.is_led, timeout_s=LIMIT_S, what="nothing is led")
        cluster.is_cut_off = False
        await until(lambda: cluster.wanted == [2, 2], timeout_s=LIMIT_S, what="told again")


async def test_pods_that_are_somebody_elses_are_not_planned_until_they_are_ours(
    stage: Stage,
) -> None:
    await stage.registry.put_models([model("a")])
    cluster = Cluster(None)
    policy = LOADING_POLICIES["predictive"]()
    async with stage.autoscaler(policy, actuator=cluster) as metrics:
        waiting = {model("a").name: QueueStats(40, 0, 0.0)}
        sequence = itertools.count(1)

        async def tell() -> None:
            await ArrivalLog(stage.registry).report("gateway", next(sequence), [], waiting)

        async def is_woken() -> bool:
            await tell()
            return cluster.wanted[-1:] == [1]

        await tell()
        plans = "pilotlight_autoscaler_plan_seconds_count"
        await until(lambda: metric(metrics, plans) >= 5, timeout_s=LIMIT_S, what="five plans")
        assert cluster.wanted == []
        cluster.given = PoolSize(Limits(0, 5), pods=0)
        await eventually(is_woken, timeout_s=LIMIT_S, what="one is wanted")
