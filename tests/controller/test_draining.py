"""Draining of pods, with a real Redis."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from autoscaler.pool_actuator import PodDrain
from controller.pool_size import replaced_pods
from controller.resources import PodObject, read_pod
from registry.domain.model import ModelName
from registry.domain.pod import PodPhase
from registry.domain.pod_state import Granted, Refusal
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests import servers
from tests.registry.redis.clients import SPEC, Pod, release, reserve, until

LIMIT_S = 30.0
LONG_S = 600.0
_pools = itertools.count(1)
POOL = ModelName("pilotlight", "pool")


@dataclass
class Stage:
    """A pool of two pods; `b` serves a request until the test releases it."""

    registry: Registry
    watch: ClusterWatch
    draining: PodDrain
    ending: set[str] = field(default_factory=set)
    """Pods marked for deletion."""

    async def update(self, *leaving: str, pods: int) -> tuple[str, ...] | None:
        return await self.draining.update(leaving, pods=pods, list_pods=self._list_pods)

    async def _list_pods(self) -> list[PodObject]:
        return [
            PodObject("pilotlight", name, name, "p", "pool", name in self.ending, 0)
            for name in "ab"
        ]

    def phases(self) -> dict[str, PodPhase]:
        return {name: pod.phase for name, pod in self.watch.state.pods.items()}


@pytest.fixture
async def stage(redis: servers.RedisServer) -> AsyncIterator[Stage]:
    registry = await Registry.connect(redis.url, f"draining-{next(_pools)}")
    watch = ClusterWatch(registry)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(watch.run())
        await watch.wait_synced()
        await registry.put_models([SPEC])
        first, second = await Pod.join(registry, "a"), await Pod.join(registry, "b")
        for pod in (first, second):
            await pod.load()
        assert isinstance(await reserve(registry, "b", id_="request"), Granted)
        await until(lambda: _is_busy(watch, "b"), timeout_s=LIMIT_S, what="the request to show")
        yield Stage(registry, watch, PodDrain(watch, drain_s=LONG_S))
        following.cancel()
    await registry.close()


def _is_busy(watch: ClusterWatch, name: str) -> bool:
    pod = watch.state.pods.get(name)
    return pod is not None and pod.slots_busy > 0


async def _wait_phase(stage: Stage, **phases: PodPhase) -> None:
    await until(lambda: stage.phases() == phases, timeout_s=LIMIT_S, what=f"{phases}")


async def test_a_busy_leaving_pod_finishes_without_new_requests(stage: Stage) -> None:
    assert await stage.update("b", pods=1) is None
    await _wait_phase(stage, a=PodPhase.READY, b=PodPhase.DRAINING)
    assert await reserve(stage.registry, "b") is Refusal.GONE
    assert not stage.draining.is_done()
    assert await stage.update("b", pods=1) is None
    await release(stage.registry, "request", "b")
    await until(stage.draining.is_done, timeout_s=LIMIT_S, what="the drain to finish")
    assert await stage.update("b", pods=1) == ("b",)


async def test_does_not_wait_longer_than_the_drain_time(stage: Stage) -> None:
    impatient = replace(stage, draining=PodDrain(stage.watch, drain_s=0.0))
    assert await impatient.update("b", pods=1) == ("b",)


async def test_pods_wanted_again_become_ready(stage: Stage) -> None:
    await stage.update("b", pods=1)
    await _wait_phase(stage, a=PodPhase.READY, b=PodPhase.DRAINING)
    assert await stage.update(pods=2) == ()
    await _wait_phase(stage, a=PodPhase.READY, b=PodPhase.READY)


async def test_a_pod_being_deleted_does_not_become_ready(stage: Stage) -> None:
    await stage.update("b", pods=1)
    await _wait_phase(stage, a=PodPhase.READY, b=PodPhase.DRAINING)
    stage.ending.add("b")
    await stage.update(pods=2)
    assert stage.phases()["b"] is PodPhase.DRAINING


async def test_does_not_wait_for_a_pod_that_is_gone(stage: Stage) -> None:
    await stage.update("a", pods=1)
    await _wait_phase(stage, a=PodPhase.DRAINING, b=PodPhase.READY)

    async def list_pods() -> list[PodObject]:
        await stage.registry.deregister_pod("b", stage.watch.state.pods["b"].epoch)
        await until(lambda: "b" not in stage.phases(), timeout_s=LIMIT_S, what="b to leave")
        return await stage._list_pods()

    assert await stage.draining.update(("b",), pods=1, list_pods=list_pods) == ("b",)
    await _wait_phase(stage, a=PodPhase.READY)


async def test_a_pod_that_is_shutting_down_is_left_alone(stage: Stage) -> None:
    await stage.registry.set_phase("a", stage.watch.state.pods["a"].epoch, PodPhase.DRAINING)
    await _wait_phase(stage, a=PodPhase.DRAINING, b=PodPhase.READY)
    assert await stage.update("a", pods=1) == ()
    assert await stage.update(pods=2) == ()
    assert stage.phases()["a"] is PodPhase.DRAINING


def pod(generation: int, *, service: str = POOL.name, name: str = "") -> PodObject:
    labels = {
        "pilotlight.io/pool": "default",
        "serving.kserve.io/inferenceservice": service,
        "serving.knative.dev/revision": f"{service}-predictor-{generation:05}",
        "serving.knative.dev/configurationGeneration": str(generation),
    }
    name = name or f"{service}-{generation}"
    metadata = {"namespace": POOL.namespace, "name": name, "uid": name}
    return read_pod({"metadata": {**metadata, "labels": labels}})


def status(**percent: int) -> dict[str, Any]:
    traffic = [
        {"revisionName": f"pool-predictor-{int(key[1:]):05}", "percent": share}
        for key, share in percent.items()
    ]
    return {"components": {"predictor": {"traffic": traffic}}}


@pytest.mark.parametrize(
    ("status_of_pool", "expected"),
    [
        pytest.param({}, set(), id="no-status-yet"),
        pytest.param(status(r1=100), set(), id="no-traffic-to-the-new-one-yet"),
        pytest.param(status(r2=100), {"pool-1"}, id="routed-to-the-second"),
        pytest.param(status(r3=100), {"pool-1", "pool-2"}, id="routed-to-the-third"),
        pytest.param(status(r1=90, r3=10), set(), id="canary"),
        pytest.param(status(r1=0, r3=100), {"pool-1", "pool-2"}, id="zero-percent-to-the-first"),
        pytest.param(status(r4=100), set(), id="routed-to-one-without-pods"),
    ],
)
def test_pods_older_than_all_routed_revisions_are_replaced(
    status_of_pool: dict[str, Any], expected: set[str]
) -> None:
    found = replaced_pods([pod(1), pod(2), pod(3)], {POOL: status_of_pool})
    assert {each.name for each in found} == expected


def test_revisions_are_compared_within_a_service() -> None:
    other = pod(1, service="other")
    assert replaced_pods([pod(1), pod(2), other], {POOL: status(r2=100)}) == {pod(1)}


def test_pods_of_other_modes_are_never_replaced() -> None:
    metadata = {"namespace": POOL.namespace, "name": "plain", "uid": "plain", "labels": {}}
    assert (
        replaced_pods([read_pod({"metadata": metadata}), pod(2)], {POOL: status(r2=100)}) == set()
    )
