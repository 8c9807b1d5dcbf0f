"""Pods that requests may be forwarded to: those of the copy, and those that it lacks yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from registry.domain.pod import PodInfo
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.registration.model_catalog import ModelCatalog
from tests import servers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

PODS, ASKED = 50, 40


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_pod_that_the_copy_has_not_heard_of_is_asked_for(
    redis: servers.RedisServer,
) -> None:
    registry = await Registry.connect(redis.url, "of-declared")
    try:
        declared = ModelCatalog(ClusterWatch(registry), registry)
        await registry.register_pod(PodInfo("new", "127.0.0.1:9", "node", slots=1))
        assert await declared.is_pod("127.0.0.1:9")
        assert not await declared.is_pod("127.0.0.1:10")
        assert not await declared.is_pod(None)
    finally:
        await registry.close()


async def test_unknown_addresses_do_not_read_the_whole_registry(tmp_path: Path) -> None:
    with servers.redis_server(tmp_path / "redis") as server:
        registry = await Registry.connect(server.url, "of-unknown")
        try:
            declared = ModelCatalog(ClusterWatch(registry), registry)
            for index in range(PODS):
                info = PodInfo(f"pod-{index}", f"127.0.0.1:{index + 1}", "node", slots=1)
                await registry.register_pod(info)
            before = await _traffic(server)
            asked = [declared.is_pod(f"10.0.0.1:{port}") for port in range(ASKED)]
            assert not any(await asyncio.gather(*asked))
            after = await _traffic(server)
        finally:
            await registry.close()
    assert after.calls - before.calls <= 3
    assert after.sent_bytes - before.sent_bytes < 10_000 + 100 * ASKED


@dataclass(frozen=True)
class Traffic:
    calls: int
    """Of the registry's script."""
    sent_bytes: int


async def _traffic(server: servers.RedisServer) -> Traffic:
    async with Redis.from_url(server.url) as client:
        calls = (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        return Traffic(calls, (await client.info("stats"))["total_net_output_bytes"])
