"""What the copy holds when replies and pushes overtake each other, or are lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from registry.domain.reservation import Granted
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.transactions import REPLY_TIMEOUT_S
from registry.redis.watch import ClusterWatch
from tests.registry.actors import KEY, Pod, reserve, until
from tests.registry.link import Link, link_to
from tests.registry.test_watch import agrees, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import RedisServer

pytestmark = pytest.mark.anyio


@dataclass
class Scene:
    """A watch behind a link, and another client that is not."""

    link: Link
    watch: ClusterWatch
    other: Registry


@pytest.fixture
async def scene(server: RedisServer, pool: str) -> AsyncIterator[Scene]:
    async with link_to(server.port) as link:
        other = await Registry.connect(server.url, pool)
        pod = await Pod.join(other, "a", slots=9, lease_ttl_s=600)
        await pod.load()
        own = await Registry.connect(link.url, pool)
        async with running(ClusterWatch(own)) as watch:
            yield Scene(link, watch, other)
        await own.close()
        await other.close()


async def begin_snapshot(scene: Scene) -> None:
    """Return when a snapshot was taken by Redis and its reply is on the way."""
    scene.link.holds_replies = True
    scene.watch._needs_snapshot.set()
    await until(lambda: scene.link.held_replies > 0)


@pytest.mark.usefixtures("without_syncs")
async def test_a_push_newer_than_the_snapshot_is_kept(scene: Scene) -> None:
    await begin_snapshot(scene)
    await Pod.join(scene.other, "b")
    await until(lambda: scene.watch._buffered_messages)
    scene.link.release()
    await until(lambda: "b" in scene.watch.state.pods)
    await until(lambda: scene.watch.repairs_total == 1)


@pytest.mark.usefixtures("without_syncs")
async def test_an_own_change_newer_than_the_snapshot_is_kept(scene: Scene) -> None:
    await begin_snapshot(scene)
    on_the_way = scene.link.held_replies
    reserved = asyncio.ensure_future(reserve(scene.watch.registry, "a"))
    await until(lambda: scene.link.held_replies > on_the_way)
    scene.link.release()
    assert isinstance(await reserved, Granted)
    await until(lambda: scene.watch.repairs_total == 1)
    assert scene.watch.state.pods["a"].slots_used == 1
    assert await agrees(scene.watch, scene.other)


async def test_a_change_pushed_while_the_version_is_asked_for_is_no_step_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.redis.watch._PUSH_TIMEOUT_S", 5.0)
    scene.link.holds_replies = True
    await until(lambda: scene.link.held_replies > 0, what="the version was asked for")
    await Pod.join(scene.other, "b")
    await until(lambda: "b" in scene.watch.state.pods)
    scene.link.release()
    scene.link.holds_replies = True
    await until(lambda: scene.link.held_replies > 0, what="the next question, or a repair")
    scene.link.release()
    await scene.watch.registry.transactions.sync()
    assert scene.watch.repairs_total == 0


@pytest.mark.usefixtures("without_syncs")
async def test_an_own_change_is_kept_when_its_reply_is_lost(scene: Scene) -> None:
    scene.link.holds_replies = True
    reserved = asyncio.ensure_future(reserve(scene.watch.registry, "a"))
    await until(lambda: scene.link.held_replies > 0)
    await until(lambda: scene.watch._pushed_version > scene.watch.state.version)
    scene.link.cut()
    with pytest.raises(RegistryUnavailable):
        await reserved
    await until(lambda: scene.watch.state.pods["a"].slots_used == 1)
    assert await agrees(scene.watch, scene.other)


async def test_an_own_change_is_kept_when_it_is_made_long_after_its_caller_gave_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.redis.watch._PUSH_TIMEOUT_S", 5.0)
    monkeypatch.setattr("registry.redis.transactions.REPLY_TIMEOUT_S", REPLY_TIMEOUT_S)
    scene.link.holds_requests = True
    reserved = asyncio.ensure_future(reserve(scene.watch.registry, "a"))
    with pytest.raises(RegistryUnavailable):
        await reserved
    held_back = [lane for lane in scene.link.lanes if lane.held_requests]
    scene.link.holds_requests = False
    await until(lambda: scene.watch.is_connected and scene.watch.age_s() < 0.5)
    assert scene.watch.state.pods["a"].slots_used == 0
    repairs = scene.watch.repairs_total
    assert held_back
    scene.link.release()
    await until(lambda: scene.watch.state.pods["a"].slots_used == 1)
    assert scene.watch.repairs_total == repairs
    assert scene.watch.state.holders(KEY)["a"].is_warm
