"""A pod that can serve nothing gives up its lease, and takes one again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from registry.domain.model import Tier
from registry.domain.pod import PodInfo
from registry.redis.client import Registry
from runtime.registration.measurements import Measurements
from runtime.registration.registry_agent import Inventory, RegistryAgent, TierState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests import servers

pytestmark = pytest.mark.anyio


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)


async def test_a_held_pod_has_no_lease(redis: servers.RedisServer) -> None:
    registry = await Registry.connect(redis.url, "held-lease")

    async def names() -> set[str]:
        return set((await registry.cluster()).pods)

    inventory = Inventory(
        keys=set, tier_state=lambda _: TierState(Tier.DISK, 1), is_loading=lambda _: False,
        used_bytes=dict, loads_total=lambda: 0, idle_byte_s=lambda: 0.0, copies=dict,
    )  # fmt: skip
    agent = RegistryAgent(
        registry, PodInfo("a", "127.0.0.1:1", "n"), inventory,
        measurements=Measurements(), heartbeat_s=0.1, lease_ttl_s=180,
    )  # fmt: skip
    agent.hold()
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(0)
    assert await names() == set()
    agent.release()
    await _until(lambda: agent.is_registered)
    assert await names() == {"a"}
    agent.hold()
    await _until(lambda: not agent.is_registered)
    async with asyncio.timeout(60):
        while await names():  # noqa: ASYNC110 - Redis has none
            await asyncio.sleep(0.001)
    agent.release()
    await _until(lambda: agent.is_registered)
    assert await names() == {"a"}
    await agent.leave()
    async with asyncio.timeout(60):
        await running
    assert await names() == set()
    await registry.close()
