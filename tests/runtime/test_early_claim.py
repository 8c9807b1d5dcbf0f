"""A load that is wanted while the pod registers: others see the pod before it knows that itself."""

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
    from registry.domain.reservation import LoadClaim
    from tests import servers

pytestmark = pytest.mark.anyio


async def test_a_load_is_claimed_while_the_first_tiers_are_sent(redis: servers.RedisServer) -> None:
    registry = await Registry.connect(redis.url, "early-claim")
    claims: list[asyncio.Task[LoadClaim]] = []

    def tier_state(key: str) -> TierState:
        assert not agent.is_registered
        if not claims:
            claims.append(asyncio.create_task(agent.claim("default/new@1", 0)))
        return TierState(Tier.DISK, 1)

    inventory = Inventory(
        keys=lambda: {"default/held@1"}, tier_state=tier_state, is_loading=lambda _: False,
        used_bytes=dict, loads_total=lambda: 0, idle_byte_s=lambda: 0.0, copies=dict,
    )  # fmt: skip
    agent = RegistryAgent(
        registry, PodInfo("a", "127.0.0.1:1", "n"), inventory,
        measurements=Measurements(), heartbeat_s=60, lease_ttl_s=180,
    )  # fmt: skip
    running = asyncio.create_task(agent.run())
    async with asyncio.timeout(60):
        while not claims:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        claim = await claims[0]
    assert claim.token is not None
    await agent.leave()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await registry.close()
