"""The use of pods, in `get pods` and in the autoscaler's metrics."""

import asyncio
import itertools

import httpx
import pytest

from registry.domain.model import ModelName, ModelSpec, Tier
from registry.redis.client import Registry
from registry.redis.reports import ArrivalLog
from tests import servers
from tests.gateway.gateway_harness import metric
from tests.pilotlight.conftest import Cli
from tests.registry.redis.clients import Pod, reserve

FOREVER_S = 3600.0
USES = {
    "empty": "cold",
    "holding": "warm-idle",
    "ready": "warm-in-use-idle",
    "working": "warm-in-use-busy",
}
_sequence = itertools.count(1)


def _spec(name: str) -> ModelSpec:
    return ModelSpec(ModelName("default", name), f"s3://models/{name}")


async def _create_pods(redis_url: str) -> None:
    """Four pods and two models, one of them in use; one pod has a request in flight."""
    registry = await Registry.connect(redis_url)
    await registry.put_models([_spec("in-use"), _spec("silent")])
    pods = {name: await Pod.join(registry, name, lease_ttl_s=FOREVER_S) for name in USES}
    await pods["holding"].set_tier(Tier.DEVICE, _spec("silent").key)
    await pods["ready"].set_tier(Tier.DEVICE, _spec("in-use").key)
    await pods["working"].set_tier(Tier.DEVICE, _spec("silent").key)
    await reserve(registry, "working", key=_spec("silent").key, ttl_s=FOREVER_S)
    await registry.close()


async def _record_arrival(redis_url: str) -> None:
    registry = await Registry.connect(redis_url)
    await ArrivalLog(registry).report(
        "gateway", next(_sequence), [(_spec("in-use").name, 1, 0)], {}
    )
    await registry.close()


def test_get_pods_shows_the_use_of_each_pod(cli: Cli, redis: servers.RedisServer) -> None:
    asyncio.run(_create_pods(redis.url))

    def is_shown() -> bool:
        asyncio.run(_record_arrival(redis.url))
        shown = cli("get", "pods", "--json", "--redis-url", redis.url).document
        return {each["name"]: each["use"] for each in shown} == USES

    servers.wait_until(is_shown, timeout_s=120, what="shown as JSON")
    table = cli("get", "pods", "--redis-url", redis.url).out
    assert "USE" in table
    assert "warm-in-use-busy" in table


@pytest.mark.slow
def test_the_autoscaler_counts_pods_by_use(redis: servers.RedisServer) -> None:
    port = servers.free_port()
    asyncio.run(_create_pods(redis.url))

    def is_counted() -> bool:
        asyncio.run(_record_arrival(redis.url))
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=60).text
        counted = [metric(text, "pilotlight_autoscaler_pods", use=use) for use in USES.values()]
        return counted == [1] * len(USES)

    with servers.running("autoscaler", redis_url=redis.url, metrics_port=port, loading="baseline"):
        servers.wait_until(is_counted, timeout_s=120, what="counted")
