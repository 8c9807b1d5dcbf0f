"""Work that blocks a pod's event loop for longer than its lease lives."""

import asyncio
import time

import pytest

from registry.domain.model import Tier
from registry.domain.pod import PodInfo
from registry.domain.pod_state import PodState
from registry.redis.client import Registry
from runtime.measurements import Measurements
from runtime.registry_agent import Inventory, RegistryAgent, TierState
from tests import servers
from tests.gateway.asynchronous import run_async
from tests.servers import wait_until

TTL_S = 0.6
POOL = "blocked"


def new_agent(registry: Registry) -> RegistryAgent:
    inventory = Inventory(
        keys=set,
        tier_state=lambda _: TierState(Tier.REMOTE, 0),
        is_loading=lambda _: False,
        used_bytes=lambda: {"device": 7},
        loads_total=lambda: 0,
        idle_byte_s=lambda: 0.0,
        copies=dict,
    )
    return RegistryAgent(
        registry,
        PodInfo("pod-a", "127.0.0.1:1", "node"),
        inventory,
        measurements=Measurements(),
        heartbeat_s=TTL_S / 3,
        lease_ttl_s=TTL_S,
    )


def read_pod(redis_url: str) -> PodState | None:
    async def read() -> PodState | None:
        registry = Registry(redis_url, POOL)
        try:
            return (await registry.cluster()).pods.get("pod-a")
        finally:
            await registry.close()

    return asyncio.run(read())


@pytest.mark.slow
@run_async
async def test_a_blocked_event_loop_does_not_lose_the_lease(redis: servers.RedisServer) -> None:
    registry = Registry(redis.url, POOL)
    agent = new_agent(registry)
    running = asyncio.ensure_future(agent.run())
    while not agent.is_registered:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    before = await asyncio.to_thread(read_pod, redis.url)
    assert before is not None
    time.sleep(5 * TTL_S)  # noqa: ASYNC251 - the attack
    await asyncio.sleep(TTL_S)  # a heartbeat after the end of the lease would register again
    after = await asyncio.to_thread(read_pod, redis.url)
    assert after is not None
    assert after.epoch == before.epoch
    await agent.leave()
    await running
    await asyncio.to_thread(wait_until, lambda: read_pod(redis.url) is None)
    await registry.close()
