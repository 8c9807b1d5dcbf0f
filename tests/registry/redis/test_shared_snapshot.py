"""Pods that connect at once share snapshots, and miss no change."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from registry.domain.model import ModelName, ModelSpec
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch, take_shared_snapshot
from tests.registry.redis.clients import Pod, agrees, eventually, running
from tests.registry.redis.conftest import Connect

PODS = 16
WATCHES = 24


async def fill(registry: Registry) -> None:
    """As many pods as share snapshots, the first of them with a model."""
    await Pod.join_warm(registry, "pod-0", lease_ttl_s=600)
    for number in range(1, PODS):
        await Pod.join(registry, f"pod-{number}", lease_ttl_s=600)


async def declare(registry: Registry, number: int) -> None:
    await registry.put_models([ModelSpec(ModelName("default", f"m-{number}"), "s3://models/m")])


async def snapshots_taken(registry: Registry) -> int:
    """Times that a client of this server read all declared models."""
    facts = await registry.transactions.command("INFO", "commandstats")
    line = next((x for x in facts.split(b"\r\n") if x.startswith(b"cmdstat_exec:")), b"calls=0,")
    return int(line.partition(b"calls=")[2].partition(b",")[0])


async def test_watches_that_connect_at_once_share_snapshots(connect: Connect) -> None:
    registry = await connect()
    await fill(registry)
    before = await snapshots_taken(registry)
    watches = [ClusterWatch(await connect(), counts=False) for _ in range(WATCHES)]
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for watch in watches:
            group.create_task(stack.enter_async_context(running(watch)))
        for number in range(20):
            await declare(registry, number)
            await asyncio.sleep(0.01)
    assert await snapshots_taken(registry) - before < WATCHES / 2


async def test_a_copy_from_a_shared_snapshot_has_every_change(connect: Connect) -> None:
    registry = await connect()
    await fill(registry)
    watches = [ClusterWatch(await connect(), counts=False) for _ in range(8)]
    async with AsyncExitStack() as stack:
        joining = [
            asyncio.create_task(stack.enter_async_context(running(watch))) for watch in watches
        ]
        number = 0
        while not all(each.done() for each in joining):
            number += 1
            await declare(registry, number)
        for watch in watches:
            await eventually(partial(agrees, watch, registry))


async def test_a_lost_client_holds_up_the_others_for_a_while_only(connect: Connect) -> None:
    registry = await connect()
    await fill(registry)
    _, _, answer = await registry.transactions.share_snapshot(0)
    assert answer == "take"  # and never stores one
    assert (await registry.transactions.share_snapshot(0))[2] == "wait"
    sharing = registry.transactions.prefix + "sharing"
    assert 0 < await registry.transactions.command("PTTL", sharing) <= 5000
    await registry.transactions.command("PEXPIRE", sharing, "100")  # its time is over soon
    versions, _, snapshot = await take_shared_snapshot(registry.transactions)
    assert versions.changes > 0
    assert len(snapshot.pods) == PODS


async def test_an_older_snapshot_is_not_used(connect: Connect) -> None:
    registry = await connect()
    await fill(registry)
    own, _, _ = await take_shared_snapshot(registry.transactions)
    read, _, snapshot = await take_shared_snapshot(registry.transactions)
    assert (own.changes > 0, read.changes, read.news) == (True, 0, own.news)
    assert len(snapshot.pods) == PODS
    await declare(registry, 1)
    newer, _, snapshot = await take_shared_snapshot(registry.transactions)
    assert newer.news > own.news
    assert [name for name, _ in snapshot.models] == ["default/m-1"]
