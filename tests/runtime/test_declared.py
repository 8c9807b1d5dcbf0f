"""Pods and models that a pod's copy of the registry has, and those that it lacks yet."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.asyncio import Redis

from registry.domain.model import ModelName
from registry.domain.pod import PodInfo
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.errors import ModelNotFound, ModelUnknown
from runtime.protocols.asgi_app import error_response
from runtime.serving.repository import ModelCatalog
from tests import servers

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
        await registry.register_pod(PodInfo("new", "127.0.0.1:9", "node", slots=1), lease_ttl_s=600)
        assert await declared.is_pod("127.0.0.1:9")
        assert not await declared.is_pod("127.0.0.1:10")
        assert not await declared.is_pod(None)
    finally:
        await registry.close()


async def test_a_model_is_unknown_while_the_registry_cannot_be_asked(tmp_path: Path) -> None:
    """A pod that has started anew has an empty copy when Redis fails over: 404 would be wrong."""
    name = ModelName("default", "m")
    with servers.redis_server(tmp_path / "redis") as server:
        registry = await Registry.connect(server.url, "of-unread")
        catalog = ModelCatalog(ClusterWatch(registry), registry)
        with pytest.raises(ModelNotFound):
            await catalog.find(name, None)
    try:
        with pytest.raises(ModelUnknown, match="m is declared is unknown") as raised:
            await catalog.find(name, None)
    finally:
        await registry.close()
    status, _, headers = error_response(raised.value)
    assert status == 503
    assert dict(headers)["x-pilotlight-not-executed"] == "draining"  # sent to another pod


async def test_unknown_addresses_do_not_read_the_whole_registry(tmp_path: Path) -> None:
    with servers.redis_server(tmp_path / "redis") as server:
        registry = await Registry.connect(server.url, "of-unknown")
        try:
            declared = ModelCatalog(ClusterWatch(registry), registry)
            for index in range(PODS):
                info = PodInfo(f"pod-{index}", f"127.0.0.1:{index + 1}", "node", slots=1)
                await registry.register_pod(info, lease_ttl_s=600)
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
