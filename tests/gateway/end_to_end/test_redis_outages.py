"""Redis unavailable and available again: requests are served and the counts recover."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import asyncio as redis_client

from registry.domain.model import RoutingPolicy
from registry.redis.client import Registry
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, running_harness
from tests.gateway.telemetry.test_arrival_counter import counted

pytestmark = pytest.mark.slow

QUEUEING = RoutingPolicy.COLOCATION_QUEUEING


@pytest.fixture
def isolated_harness(
    own_redis: servers.RedisServer, client: httpx.Client, tmp_path: Path
) -> Iterator[GatewayHarness]:
    """A gateway with its own Redis."""
    with running_harness(tmp_path / "gateway", own_redis.url, "lone", client) as harness:
        yield harness


def test_arrivals_during_an_outage_are_reported_after_it(
    isolated_harness: GatewayHarness, own_redis: servers.RedisServer
) -> None:
    harness = isolated_harness
    spec = harness.declare(routing=QUEUEING)
    harness.start_pods("pod-a", slots=2, warm=spec)
    assert harness.predict(spec).status_code == 200
    servers.wait_until(lambda: counted(harness, spec.name) == 1, what="the first arrival")
    own_redis.stop()
    for _ in range(3):
        assert harness.predict(spec).status_code == 200
    own_redis.start()
    servers.wait_until(harness.is_redis_available, what="Redis has read its data")
    servers.wait_until(lambda: counted(harness, spec.name) == 4, what="arrivals of the outage")


def test_warm_requests_are_served_without_redis_and_counts_recover(
    isolated_harness: GatewayHarness, own_redis: servers.RedisServer
) -> None:
    harness = isolated_harness
    spec = harness.declare(routing=QUEUEING)
    pods = harness.start_pods("pod-a", slots=2, warm=spec)
    held = harness.hold_pod(pods, spec, x_test="around=hold")
    own_redis.stop()
    responses = [harness.predict(spec, x_test="response=headers") for _ in range(20)]
    assert Counter(response.status_code for response in responses) == {200: 20}
    assert {response.headers["x-pilotlight-start"] for response in responses} == {"warm"}
    assert harness.client.get(f"{harness.gateway.url}/readyz").status_code == 200
    own_redis.start()
    pods.control("pod-a", "release")
    assert held.result().status_code == 200
    servers.wait_until(harness.is_redis_available, what="Redis responses")
    harness.wait_synced()
    harness.wait_idle(pods)
    assert harness.predict(spec).headers["x-pilotlight-start"] == "warm"
    assert pods.counts("pod-a")["refused"] == 0


def test_slots_given_back_without_redis_are_free_soon_after_the_outage(
    isolated_harness: GatewayHarness, own_redis: servers.RedisServer
) -> None:
    harness = isolated_harness
    spec = harness.declare(routing=QUEUEING)
    pods = harness.start_pods("pod-a", slots=2, warm=spec)
    held = [harness.predict_in_background(spec, x_test="around=hold") for _ in range(2)]
    servers.wait_until(lambda: harness.slots_used("pod-a") == 2, what="reserved")
    own_redis.stop()
    pods.control("pod-a", "release")
    assert [each.result().status_code for each in held] == [200, 200]
    own_redis.start()
    servers.wait_until(harness.is_redis_available, what="Redis has read its data")
    servers.wait_until(lambda: harness.slots_used("pod-a") == 0, timeout_s=8.0, what="free slots")
    harness.wait_idle(pods)


def test_the_age_of_the_cluster_state_grows_without_redis(
    isolated_harness: GatewayHarness, own_redis: servers.RedisServer
) -> None:
    own_redis.stop()
    servers.wait_until(
        lambda: isolated_harness.metric("pilotlight_gateway_registry_age_seconds") > 1.5,
        what="old state",
    )
    own_redis.start()
    servers.wait_until(
        lambda: isolated_harness.metric("pilotlight_gateway_registry_age_seconds") < 1.0,
        what="new state",
    )


def test_pods_register_again_in_an_emptied_redis(isolated_harness: GatewayHarness) -> None:
    harness = isolated_harness
    spec, pods = harness.start_warm_pod(routing=QUEUEING)

    async def empty(registry: Registry) -> None:
        redis = redis_client.from_url(harness.redis_url)
        await redis.flushall()
        await redis.aclose()
        await registry.put_models([spec])

    harness.run(empty)
    servers.wait_until(
        lambda: harness.predict(spec).headers.get("x-pilotlight-start") == "warm", what="warm again"
    )
    harness.wait_idle(pods)
    assert pods.counts("pod-a")["loads"] == 0


def test_a_gateway_is_not_ready_before_it_has_read_the_registry(
    tmp_path: Path, client: httpx.Client
) -> None:
    redis = servers.RedisServer(tmp_path / "redis")
    with servers.gateway(tmp_path, redis_url=redis.url, wait_ready=False) as gateway:
        alive, ready = f"{gateway.url}/healthz", f"{gateway.url}/readyz"
        servers.wait_until(lambda: client.get(alive).status_code == 200)
        assert client.get(ready).status_code == 503
        response = client.post(f"{gateway.url}/v1/models/m:predict", content=b"{}")
        assert response.status_code == 503
        assert "registry" in response.json()["error"]
        assert response.headers["retry-after"]
        redis.start()
        servers.wait_until(gateway.is_ready, what="gateway ready")
        assert client.post(f"{gateway.url}/v1/models/m:predict").status_code == 404
        redis.stop()
