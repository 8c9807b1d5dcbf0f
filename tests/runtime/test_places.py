"""Pods of a cluster take the places of the plan on their accelerator, one pod each."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.pod import PodInfo
from registry.domain.records import PlacedPod, PlacedReplica, PlacementRecord
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from registry.redis.watch import ClusterWatch
from runtime.pod.placement_claim import PlaceWatch, with_place
from runtime.settings import RuntimeSettings
from tests import servers
from tests.registry.redis.clients import act, eventually, running, until

GPU = "GPU-a"
_pools = itertools.count(1)


@pytest.fixture
def pool() -> str:
    return f"places-{next(_pools)}"


def place(name: str, model: str = "m", **replica: Any) -> PlacedPod:
    return PlacedPod(name, PlacedReplica(f"default/{model}", GPU, 16, **replica), 1.0)


async def plan(registry: Registry, *places: PlacedPod) -> None:
    log = AutoscalerLog(registry)
    token = await log.acquire_lead("one", ttl_s=600)
    assert token is not None
    await log.set_placement(token, PlacementRecord("usher", "test", 1.0, (GPU,), pods=places))


def settings(redis_url: str, pool: str, name: str = "a", **others: Any) -> RuntimeSettings:
    return RuntimeSettings(
        name=name, redis_url=redis_url, pool=pool, takes_places=GPU, max_share=25.0, **others
    )


def test_a_pod_starts_with_the_model_share_and_slots_of_its_place(
    redis: servers.RedisServer, pool: str
) -> None:
    act(
        redis.url, pool, lambda one: plan(one, place("placed-0", share_pct=12.5), place("placed-1"))
    )
    first, second, third = (with_place(settings(redis.url, pool, name)) for name in "abc")
    assert (first.place, first.placed_model, first.share) == ("placed-0", "default/m", 12.5)
    assert (second.place, second.share, second.slots) == ("placed-1", 25.0, 32)
    assert (third.place, third.placed_model, third.share) == ("", "", 25.0)


def test_a_share_above_the_pods_largest_is_that(redis: servers.RedisServer, pool: str) -> None:
    act(redis.url, pool, lambda one: plan(one, place("placed-0", share_pct=50.0)))
    assert with_place(settings(redis.url, pool)).share == 25.0


def test_a_pod_starts_without_a_place_while_the_registry_is_away(pool: str) -> None:
    found = with_place(settings(f"redis://127.0.0.1:{servers.free_port()}", pool))
    assert (found.place, found.placed_model, found.takes_places) == ("", "", GPU)


def test_a_gpu_is_named_by_its_uuid(
    redis: servers.RedisServer, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nvidia-smi` is a stand-in that lists two GPUs: a machine of tests has none."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho GPU-x\necho GPU-a\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    act(redis.url, pool, lambda one: plan(one, place("placed-0")))
    seen = RuntimeSettings(name="a", redis_url=redis.url, pool=pool, takes_places="gpu")
    for visible, uuid, taken in (("1", GPU, "placed-0"), ("GPU-b", "GPU-b", ""), ("", "GPU-x", "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found = with_place(seen)
        assert (found.takes_places, found.place) == (uuid, taken)
    program.unlink()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert with_place(seen).takes_places == ""


@contextlib.asynccontextmanager
async def watching(url: str, pool: str, place: str = "", model: str = "") -> AsyncIterator[Any]:
    """A registered pod's watch of its place; yields the registry and the restarts that it asks."""
    registry, restarts = await Registry.connect(url, pool), []
    info = PodInfo("a", "a:1", "n", place=place, placed_model=model, takes_places=GPU)
    try:
        await registry.register_pod(info, lease_ttl_s=600)
        watch = ClusterWatch(registry, counts=False)
        async with running(watch):
            task = asyncio.create_task(PlaceWatch(watch, info, lambda: restarts.append(1)).run())
            try:
                yield registry, watch, restarts
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
    finally:
        await registry.close()


async def test_a_pod_without_a_place_starts_anew_for_an_open_one(
    redis: servers.RedisServer, pool: str
) -> None:
    async with watching(redis.url, pool) as (registry, _, restarts):
        await plan(registry, place("placed-0"))
        await until(lambda: restarts == [1])
        taken = await registry.take_place("a", GPU)
        assert taken == place("placed-0")


async def test_a_pod_leaves_places_that_others_have(redis: servers.RedisServer, pool: str) -> None:
    async with watching(redis.url, pool) as (registry, watch, restarts):
        other = PodInfo("b", "b:1", "n", place="placed-0", takes_places=GPU)
        await registry.register_pod(other, lease_ttl_s=600)
        await plan(registry, place("placed-0"))
        await until(lambda: watch.state.placement is not None)
        assert await registry.take_place("b", GPU) is not None
        assert restarts == []
        epoch = await registry.register_pod(other, lease_ttl_s=600)
        await registry.deregister_pod("b", epoch)
        await until(lambda: restarts == [1])


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([], id="gone"),
        pytest.param([place("placed-0", "other")], id="of another model"),
    ],
)
async def test_a_pod_starts_anew_when_its_place_is(
    redis: servers.RedisServer, pool: str, after: list[PlacedPod]
) -> None:
    async with watching(redis.url, pool, "placed-0", "default/m") as (registry, watch, restarts):
        await plan(registry, place("placed-0"))
        await until(lambda: watch.state.placement is not None)
        assert restarts == []
        await plan(registry, *after)
        await until(lambda: restarts == [1])


@pytest.fixture
def start_pod(
    redis: servers.RedisServer, pool: str, tmp_path: Path
) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    with contextlib.ExitStack() as stack:

        def start(name: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(
                servers.running(
                    "runtime",
                    name=name,
                    redis_url=redis.url,
                    pool=pool,
                    takes_places=GPU,
                    grpc_port=servers.free_port(),
                    cache_dir=tmp_path / name / "cache",
                    host_dir=tmp_path / name / "host",
                )
            )

        yield start


@pytest.mark.slow
def test_pods_follow_the_plan(
    redis: servers.RedisServer,
    pool: str,
    models: Path,
    start_pod: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    names = ("m", "other")
    specs = [ModelSpec(ModelName("default", n), (models / "tiny-bert").as_uri()) for n in names]

    def holders(state: ClusterState) -> dict[str, tuple[str, list[str]]]:
        """By pod: its place, and the models that are warm on it."""
        return {
            name: (
                pod.info.place,
                [
                    spec.name.name
                    for spec in specs
                    if (held := state.holders(spec.key).get(name)) and held.tier is Tier.DEVICE
                ],
            )
            for name, pod in state.pods.items()
        }

    async def scenario(registry: Registry) -> None:
        async def look() -> dict[str, tuple[str, list[str]]]:
            return holders(await registry.cluster())

        async def becomes(**wanted: tuple[str, list[str]]) -> None:
            async def check() -> bool:
                return await look() == wanted

            try:
                await eventually(check, timeout_s=120)
            except TimeoutError as error:
                raise TimeoutError(f"{await look()} instead of {wanted}") from error

        await registry.put_models(specs)
        first, second = start_pod("a"), start_pod("b")
        await becomes(a=("", []), b=("", []))
        await plan(registry, place("placed-0"))
        await eventually(lambda: _is_one_of(look, ("placed-0", ["m"])), timeout_s=120)
        placed = {name for name, (held, _) in (await look()).items() if held}
        pods = {"a": first, "b": second}
        [died] = placed
        [left] = pods.keys() - placed
        os.kill(pods[died].pid, signal.SIGKILL)
        await becomes(**{left: ("placed-0", ["m"])})
        await plan(registry, place("placed-1", "other"))
        await becomes(**{left: ("placed-1", ["other"])})
        await plan(registry)
        await becomes(**{left: ("", [])})
        assert pods[left].poll() is None  # the same process all the time

    act(redis.url, pool, scenario)


async def _is_one_of(look: Callable[[], Any], wanted: tuple[str, list[str]]) -> bool:
    found = await look()
    return len(found) == 2 and wanted in found.values()
