"""Measurements of models that are no longer declared: kept for a while, then dropped everywhere."""

import dataclasses

import redis.asyncio

from registry.domain.pod import PodReport, Samples
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests.registry.redis.clients import KEY, SPEC, Pod, running, until
from tests.servers import RedisServer

NEXT = dataclasses.replace(SPEC, storage_uri="s3://models/two")
KEPT_MS = 600_000


async def measure(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    await pod.heartbeat(PodReport(samples=(Samples(KEY, "infer", (0.25,)),)))


async def kept_keys(server: RedisServer, registry: Registry) -> set[str]:
    prefix = registry.transactions.prefix
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:
        found = {str(each) for each in await client.smembers(f"{prefix}measured")}
        if await client.exists(f"{prefix}samples:{KEY}"):
            found.add(f"samples:{KEY}")
        return found


async def pass_time(server: RedisServer, registry: Registry, ms: int) -> None:
    """Measurements are due `ms` sooner; then what is due is removed."""
    prefix = registry.transactions.prefix
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.zincrby(f"{prefix}forgotten", -ms, KEY)
        await client.delete(f"{prefix}swept")
    await registry.transactions.sync()


async def test_a_deleted_models_measurements_are_dropped_after_ten_minutes(
    server: RedisServer, registry: Registry
) -> None:
    await measure(registry)
    async with running(ClusterWatch(registry)) as watch:
        await registry.delete_models([SPEC.name])
        await pass_time(server, registry, KEPT_MS - 60_000)
        assert watch.state.measured(KEY).infer.is_measured
        assert await kept_keys(server, registry) == {KEY, f"samples:{KEY}"}
        await pass_time(server, registry, 60_000)
        await until(lambda: not watch.state.measured(KEY).infer.is_measured)
    assert await kept_keys(server, registry) == set()


async def test_a_model_that_is_declared_again_keeps_its_measurements(
    server: RedisServer, registry: Registry
) -> None:
    await measure(registry)
    await registry.delete_models([SPEC.name])
    await registry.put_models([SPEC])
    await pass_time(server, registry, KEPT_MS)
    assert (await registry.cluster()).measured(KEY).infer.seconds == 0.25


async def test_an_old_generations_measurements_are_dropped(
    server: RedisServer, registry: Registry
) -> None:
    await measure(registry)
    await registry.put_models([NEXT])
    await pass_time(server, registry, KEPT_MS)
    assert not (await registry.cluster()).measured(KEY).infer.is_measured
    assert await kept_keys(server, registry) == set()


async def test_an_old_generation_that_served_for_long_is_forgotten_after_its_end(
    server: RedisServer, registry: Registry
) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    await pod.load(KEY)
    await pod.heartbeat(PodReport(samples=(Samples(KEY, "infer", (0.25,)),)))
    await registry.put_models([NEXT])
    await pass_time(server, registry, KEPT_MS)
    assert (await registry.cluster()).measured(KEY).infer.is_measured
    await pod.leave()
    await pass_time(server, registry, KEPT_MS)
    assert await kept_keys(server, registry) == set()


async def test_arrivals_of_a_deleted_model_are_dropped_with_its_measurements(
    server: RedisServer, registry: Registry
) -> None:
    await measure(registry)
    async with running(ClusterWatch(registry)) as watch:
        watch.state.arrivals.record(KEY, 0.0)
        await registry.delete_models([SPEC.name])
        await pass_time(server, registry, KEPT_MS)
        await until(lambda: KEY not in watch.state.arrivals.models())
