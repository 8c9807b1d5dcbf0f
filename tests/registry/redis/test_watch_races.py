"""The copy when replies and pushes overtake each other or are lost."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from registry.domain.pod_state import Granted
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.transactions import REPLY_TIMEOUT_S
from registry.redis.watch import ClusterWatch
from tests.registry.redis.clients import KEY, Pod, agrees, reserve, running, until
from tests.registry.redis.delaying_proxy import DelayingProxy, proxy_to
from tests.servers import RedisServer

pytestmark = pytest.mark.slow


@dataclass
class Scene:
    """A watch behind a proxy, and another client without it."""

    proxy: DelayingProxy
    watch: ClusterWatch
    other: Registry


@pytest.fixture
async def scene(server: RedisServer, pool: str) -> AsyncIterator[Scene]:
    async with proxy_to(server.port) as proxy:
        other = await Registry.connect(server.url, pool)
        await Pod.join_warm(other, "a", slots=9, lease_ttl_s=600)
        own = await Registry.connect(proxy.url, pool)
        async with running(ClusterWatch(own)) as watch:
            yield Scene(proxy, watch, other)
        await own.close()
        await other.close()


async def begin_snapshot(scene: Scene) -> None:
    """Return when Redis has sent its reply to a snapshot and the proxy holds it."""
    scene.proxy.holds_replies = True
    scene.watch._needs_snapshot.set()
    await until(lambda: scene.proxy.held_replies > 0)


@pytest.mark.usefixtures("without_syncs")
async def test_a_message_newer_than_the_snapshot_is_applied(scene: Scene) -> None:
    await begin_snapshot(scene)
    await Pod.join(scene.other, "b")
    await until(lambda: scene.watch._buffered_messages)
    scene.proxy.release()
    await until(lambda: "b" in scene.watch.state.pods)
    await until(lambda: scene.watch.repairs_total == 1)


@pytest.mark.usefixtures("without_syncs")
async def test_an_own_change_newer_than_the_snapshot_is_applied(scene: Scene) -> None:
    await begin_snapshot(scene)
    held = scene.proxy.held_replies
    reserved = asyncio.ensure_future(reserve(scene.watch.registry, "a"))
    await until(lambda: scene.proxy.held_replies > held)
    scene.proxy.release()
    assert isinstance(await reserved, Granted)
    await until(lambda: scene.watch.repairs_total == 1)
    assert scene.watch.state.pods["a"].slots_used == 1
    assert await agrees(scene.watch, scene.other)


async def test_a_message_during_a_sync_is_no_version_that_went_back(scene: Scene) -> None:
    scene.proxy.holds_replies = True
    await until(lambda: scene.proxy.held_replies > 0, what="a sync")
    await Pod.join(scene.other, "b")
    await until(lambda: "b" in scene.watch.state.pods)
    scene.proxy.release()
    scene.proxy.holds_replies = True
    await until(lambda: scene.proxy.held_replies > 0, what="the next sync, or a repair")
    scene.proxy.release()
    await scene.watch.registry.transactions.sync()
    assert scene.watch.repairs_total == 0


@pytest.mark.usefixtures("without_syncs")
async def test_an_own_change_with_a_lost_reply_is_applied(scene: Scene) -> None:
    scene.proxy.holds_replies = True
    reserved = asyncio.ensure_future(reserve(scene.watch.registry, "a"))
    await until(lambda: scene.proxy.held_replies > 0)
    await until(lambda: scene.watch._pushed_version > scene.watch.state.version)
    scene.proxy.drop_replies()
    with pytest.raises(RegistryUnavailable):
        await reserved
    await until(lambda: scene.watch.state.pods["a"].slots_used == 1)
    assert await agrees(scene.watch, scene.other)


async def test_an_own_change_made_after_the_timeout_is_applied(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.redis.transactions.REPLY_TIMEOUT_S", REPLY_TIMEOUT_S)
    scene.proxy.holds_requests = True
    reserved = asyncio.ensure_future(reserve(scene.watch.registry, "a"))
    with pytest.raises(RegistryUnavailable):
        await reserved
    held_back = [each for each in scene.proxy.connections if each.held_requests]
    scene.proxy.holds_requests = False
    await until(lambda: scene.watch.is_connected and scene.watch.age_s() < 0.5)
    assert scene.watch.state.pods["a"].slots_used == 0
    repairs = scene.watch.repairs_total
    assert held_back
    scene.proxy.release()
    await until(lambda: scene.watch.state.pods["a"].slots_used == 1)
    assert scene.watch.repairs_total == repairs
    assert scene.watch.state.holders(KEY)["a"].is_warm


async def test_a_connection_for_pushes_that_fell_silent_is_replaced(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a firewall forgets it: both ends take it for open."""
    monkeypatch.setattr("registry.redis.watch.REPLY_TIMEOUT_S", REPLY_TIMEOUT_S)
    silent = [each for each in scene.proxy.connections if each.is_subscription]
    for each in silent:
        each.is_silent = True
    await Pod.join(scene.other, "b")
    await until(lambda: "b" in scene.watch.state.pods)
    await until(
        lambda: sum(each.is_subscription for each in scene.proxy.connections) > len(silent),
        what="another connection for pushes",
        timeout_s=10,
    )
    await until(lambda: scene.watch.is_connected)
    repairs = scene.watch.repairs_total
    await Pod.join(scene.other, "c")
    await until(lambda: "c" in scene.watch.state.pods)
    assert scene.watch.repairs_total == repairs
