"""A pod's lease while it can serve nothing, and loads that are wanted while it registers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from registry.domain.model import Tier
from registry.domain.pod import PodInfo
from registry.domain.pod_state import LoadClaim
from registry.redis.client import Registry
from runtime.measurements import Measurements
from runtime.registry_agent import Inventory, RegistryAgent, TierState
from tests import servers


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)


def agent_of(registry: Registry, *, heartbeat_s: float, **queries: Any) -> RegistryAgent:
    """An agent of a pod without models, but for what the queries say."""
    absent: dict[str, Any] = {
        "keys": set,
        "tier_state": lambda _: TierState(Tier.DISK, 1),
        "is_loading": lambda _: False,
        "used_bytes": dict,
        "loads_total": lambda: 0,
        "idle_byte_s": lambda: 0.0,
        "copies": dict,
    }
    info = PodInfo("a", "127.0.0.1:1", "n")
    return RegistryAgent(
        registry,
        info,
        Inventory(**{**absent, **queries}),
        measurements=Measurements(),
        heartbeat_s=heartbeat_s,
        lease_ttl_s=180,
    )


async def test_a_held_pod_has_no_lease(redis: servers.RedisServer) -> None:
    registry = await Registry.connect(redis.url, "held-lease")

    async def names() -> set[str]:
        return set((await registry.cluster()).pods)

    agent = agent_of(registry, heartbeat_s=0.1)
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


async def test_a_load_is_claimed_while_the_first_tiers_are_sent(redis: servers.RedisServer) -> None:
    registry = await Registry.connect(redis.url, "early-claim")
    claims: list[asyncio.Task[LoadClaim]] = []

    def tier_state(key: str) -> TierState:
        assert not agent.is_registered
        if not claims:
            claims.append(asyncio.create_task(agent.claim("default/new@1", 0)))
        return TierState(Tier.DISK, 1)

    agent = agent_of(
        registry, heartbeat_s=60, keys=lambda: {"default/held@1"}, tier_state=tier_state
    )
    running = asyncio.create_task(agent.run())
    await _until(lambda: bool(claims))
    async with asyncio.timeout(60):
        assert (await claims[0]).token is not None
    await agent.leave()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await registry.close()


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_pod_that_leaves_while_it_registers_has_no_lease(
    redis: servers.RedisServer, is_late: bool
) -> None:
    """As one that is stopped in its first moments: gateways and the autoscaler would count it."""
    registry = await Registry.connect(redis.url, f"left-while-registering-{is_late}")
    leaving: list[asyncio.Task[None]] = []

    def tier_state(_: str) -> TierState:  # the pod is registered, and sends its tiers
        if not leaving:
            leaving.append(asyncio.create_task(agent.leave()))
        return TierState(Tier.DISK, 1)

    keys = {"default/held@1", "default/other@1"}
    agent = agent_of(registry, heartbeat_s=60, keys=lambda: keys, tier_state=tier_state)
    running = asyncio.create_task(agent.run())
    if not is_late:
        await asyncio.sleep(0)
        leaving.append(asyncio.create_task(agent.leave()))
    async with asyncio.timeout(60):
        await running
        await leaving[0]
    assert set((await registry.cluster()).pods) == set()
    await registry.close()
