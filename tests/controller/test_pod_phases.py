"""Phases of pods that the cluster ends, replaces or rolls back to, with a real Redis."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from redis import asyncio as asyncio_redis

from controller import pool_size as leaving_pods
from controller.objects import ClusterObjects
from controller.pools import PodPhases, PoolRegistries
from controller.resources import PodObject, read_service
from registry.domain.pod import PodPhase
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from tests import servers
from tests.controller.objects import service
from tests.registry.redis.clients import Pod, eventually, until

LIMIT_S = 30.0
_pools = itertools.count(1)


@dataclass
class Stage:
    """A pool in Knative mode with an old pod and a new one."""

    pool: str
    objects: ClusterObjects
    registries: PoolRegistries
    phases: PodPhases
    old: Pod

    def update(self, name: str, generation: int, *, is_ending: bool = False) -> None:
        pod = self.pod(name, generation, is_ending=is_ending)
        self.objects.update(pod)

    def pod(
        self, name: str, generation: int, *, namespace: str = "pilotlight", is_ending: bool = False
    ) -> PodObject:
        return PodObject(
            namespace,
            name,
            f"{namespace}-{name}",
            self.pool,
            "pool",
            is_ending,
            0,
            f"pool-{generation:05}",
            generation,
        )

    def route_to(self, generation: int) -> None:
        traffic = [{"revisionName": f"pool-{generation:05}", "percent": 100}]
        document = service(
            name="pool",
            namespace="pilotlight",
            uid="p",
            annotations={},
            labels={"pilotlight.io/pool": self.pool},
            status={"components": {"predictor": {"traffic": traffic}}},
        )
        self.objects.update(read_service(document))

    def phase(self, name: str) -> PodPhase:
        return self.registries.get(self.pool).state.pods[name].phase

    async def shut_down(self) -> None:
        await self.old.registry.set_phase("old", self.old.epoch, PodPhase.DRAINING)
        await self.wait_phase("old", PodPhase.DRAINING)

    async def wait_phase(self, name: str, phase: PodPhase) -> None:
        await until(lambda: self.phase(name) is phase, timeout_s=LIMIT_S, what=f"{name} {phase}")


@pytest.fixture
async def stage(redis: servers.RedisServer) -> AsyncIterator[Stage]:
    pool = f"phases-{next(_pools)}"
    registry = await Registry.connect(redis.url, pool)
    old = await Pod.join(registry, "old", uid="pilotlight-old")
    await Pod.join(registry, "new", uid="pilotlight-new")
    async with asyncio.TaskGroup() as tasks:
        registries, objects = PoolRegistries(redis.url, tasks, lambda: None), ClusterObjects()
        await registries.get(pool).watch.wait_synced()
        made = Stage(pool, objects, registries, PodPhases(objects, registries), old)
        made.update("old", 1)
        made.update("new", 2)
        made.route_to(1)
        yield made
        await registries.close()
    await registry.close()


async def test_a_pod_that_is_shutting_down_is_left_alone(stage: Stage) -> None:
    await stage.shut_down()
    await stage.phases.update()
    assert stage.phase("old") is PodPhase.DRAINING
    assert stage.phase("new") is PodPhase.READY


async def test_a_replaced_pod_drains_until_a_rollback(stage: Stage) -> None:
    stage.route_to(2)
    await stage.phases.update()
    await stage.wait_phase("old", PodPhase.DRAINING)
    stage.route_to(1)
    await stage.phases.update()
    await stage.wait_phase("old", PodPhase.READY)
    await stage.shut_down()
    await stage.phases.update()
    assert stage.phase("old") is PodPhase.DRAINING


async def test_an_ending_pod_keeps_draining(stage: Stage) -> None:
    stage.update("old", 1, is_ending=True)
    for _ in range(2):
        await stage.phases.update()
        await stage.wait_phase("old", PodPhase.DRAINING)


async def test_a_restarted_pod_may_drain_on_its_own(stage: Stage) -> None:
    stage.route_to(2)
    await stage.phases.update()
    await stage.wait_phase("old", PodPhase.DRAINING)
    stage.old = await Pod.join(stage.old.registry, "old", uid="pilotlight-old")
    await stage.wait_phase("old", PodPhase.READY)
    stage.route_to(1)
    await stage.shut_down()
    await stage.phases.update()
    assert stage.phase("old") is PodPhase.DRAINING


async def test_an_untracked_drain_is_cancelled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.shut_down()
    monkeypatch.setattr(leaving_pods, "UNTRACKED_DRAIN_S", -1.0)
    await stage.phases.update()
    await stage.wait_phase("old", PodPhase.READY)


@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_tenants_pod_of_the_same_name_and_label_changes_nothing(
    stage: Stage, *, is_removed: bool
) -> None:
    """Its owner marks it for deletion, or deletes it; the pool's own pod serves on."""
    of_tenant = stage.pod("old", 0, namespace="tenant", is_ending=True)
    stage.objects.update(of_tenant)
    if is_removed:
        stage.objects.update(of_tenant, is_removed=True)
    stage.update("new", 2, is_ending=True)  # acted upon, so the update has had its effect
    await stage.phases.update()
    await stage.wait_phase("new", PodPhase.DRAINING)
    assert stage.phase("old") is PodPhase.READY


async def test_a_removed_pod_is_deregistered_and_its_successor_of_the_same_name_is_not(
    stage: Stage,
) -> None:
    stage.objects.update(stage.pod("old", 1), is_removed=True)
    await stage.phases.update()
    pods = stage.registries.get(stage.pool).state.pods
    await until(lambda: "old" not in pods, timeout_s=LIMIT_S, what="the pod is gone")
    stage.update("old", 1)
    await Pod.join(stage.old.registry, "old", uid="another")
    await until(lambda: "old" in pods, timeout_s=LIMIT_S, what="the successor is registered")
    stage.objects.update(stage.pod("old", 1), is_removed=True)
    await stage.phases.update()
    assert "old" in pods


@pytest.mark.slow
async def test_a_removed_pod_is_deregistered_once_the_registry_is_back(
    stage: Stage, redis: servers.RedisServer
) -> None:
    stage.objects.update(stage.pod("old", 1), is_removed=True)
    async with asyncio_redis.Redis.from_url(redis.url) as direct:
        await direct.client_pause(2000)
    with pytest.raises(RegistryUnavailable):
        await stage.phases.update()

    async def is_updated() -> bool:
        with contextlib.suppress(RegistryUnavailable):
            await stage.phases.update()
            return True
        return False

    await eventually(is_updated, timeout_s=LIMIT_S)
    state = stage.registries.get(stage.pool).state
    await until(lambda: "old" not in state.pods, timeout_s=LIMIT_S, what="deregistered")
