"""Redis away and back, gateways that die, drain or share the pods: counts come right again."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest
from redis import asyncio as redis_client

from registry.domain.model import RoutingPolicy
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, exchange_bytes, wait_counts
from tests.gateway.telemetry.test_arrival_counter import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from registry.redis.client import Registry

QUEUEING = RoutingPolicy.COLOCATION_QUEUEING


@pytest.fixture
def isolated_harness(
    own_redis: servers.RedisServer, client: httpx.Client, tmp_path: Path
) -> Iterator[GatewayHarness]:
    """A gateway of its own on a Redis of its own."""
    with ExitStack() as stack:
        gateway = stack.enter_context(
            servers.gateway(tmp_path / "gateway", redis_url=own_redis.url, pool="lone")
        )
        harness = GatewayHarness(own_redis.url, "lone", gateway, client, stack)
        yield harness
        harness.threads.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def second_gateway(
    shared_gateway: tuple[servers.Gateway, str],
    redis: servers.RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Gateway]:
    """Another gateway for the same pool."""
    with servers.gateway(
        tmp_path_factory.mktemp("second"), redis_url=redis.url, pool=shared_gateway[1]
    ) as started:
        yield started


@pytest.fixture(scope="module")
def short_timeout_gateway(
    shared_gateway: tuple[servers.Gateway, str],
    redis: servers.RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Gateway]:
    """Another one, with settings that tests would else wait for: it may run out of time itself."""
    with servers.gateway(
        tmp_path_factory.mktemp("short-timeouts"),
        redis_url=redis.url,
        pool=shared_gateway[1],
        reservation_ttl=2.0,
        body_timeout=0.2,
        allow_policy_header="false",
    ) as started:
        yield started


# Redis


def test_arrivals_during_an_outage_are_reported_after_it(
    isolated_harness: GatewayHarness, own_redis: servers.RedisServer
) -> None:
    harness = isolated_harness
    spec = harness.declare(routing=QUEUEING)
    harness.start_pods("pod-a", slots=2, warm=spec)
    assert harness.predict(spec).status_code == 200
    servers.wait_until(lambda: counted(harness, spec.name) == 1, what="the first one counted")
    own_redis.stop()
    for _ in range(3):
        assert harness.predict(spec).status_code == 200
    own_redis.start()
    servers.wait_until(harness.is_redis_available, what="Redis has read its data")
    servers.wait_until(lambda: counted(harness, spec.name) == 4, what="those of the outage, too")


def test_warm_requests_are_served_without_redis_and_counts_recover(
    isolated_harness: GatewayHarness, own_redis: servers.RedisServer
) -> None:
    harness = isolated_harness
    spec = harness.declare(routing=QUEUEING)
    pods = harness.start_pods("pod-a", slots=2, warm=spec)
    held = harness.predict_in_background(spec, x_test="around=hold")
    wait_counts(pods, "pod-a", busy=1)
    own_redis.stop()
    answers = [harness.predict(spec, x_test="answer=headers") for _ in range(20)]
    assert Counter(answer.status_code for answer in answers) == {200: 20}
    assert {answer.headers["x-pilotlight-start"] for answer in answers} == {"warm"}
    assert harness.client.get(f"{harness.gateway.url}/readyz").status_code == 200
    own_redis.start()
    pods.control("pod-a", "release")
    assert held.result().status_code == 200
    servers.wait_until(harness.is_redis_available, what="Redis answers")
    harness.wait_synced()
    harness.wait_idle(pods)
    assert harness.predict(spec).headers["x-pilotlight-start"] == "warm"
    assert pods.counts("pod-a")["refused"] == 0


def test_the_age_of_the_cluster_state_grows_without_redis(
    isolated_harness: GatewayHarness, own_redis: servers.RedisServer
) -> None:
    own_redis.stop()
    servers.wait_until(
        lambda: isolated_harness.metric("pilotlight_gateway_registry_age_seconds") > 1.5,
        what="it ages",
    )
    own_redis.start()
    servers.wait_until(
        lambda: isolated_harness.metric("pilotlight_gateway_registry_age_seconds") < 1.0,
        what="it is new",
    )


def test_pods_register_again_in_an_emptied_redis(
    isolated_harness: GatewayHarness,
) -> None:
    harness = isolated_harness
    spec = harness.declare(routing=QUEUEING)
    pods = harness.start_pods("pod-a", warm=spec)

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
        answer = client.post(f"{gateway.url}/v1/models/m:predict", content=b"{}")
        assert answer.status_code == 503
        assert "registry" in answer.json()["error"]
        assert answer.headers["retry-after"]
        redis.start()
        servers.wait_until(gateway.is_ready, what="gateway ready")
        assert client.post(f"{gateway.url}/v1/models/m:predict").status_code == 404
        redis.stop()


# Gateways


def test_two_gateways_never_exceed_the_slots(
    harness: GatewayHarness, second_gateway: servers.Gateway
) -> None:
    spec = harness.declare(routing=QUEUEING)
    pods = harness.start_pods("pod-a", "pod-b", slots=2, warm=spec)
    harness.wait_synced(second_gateway)
    urls = [harness.url_of(spec), harness.url_of(spec, second_gateway)]

    def ask(n: int) -> int:
        headers = {"x-test": "delay=0.002"}
        return harness.client.post(urls[n % 2], content=b"{}", headers=headers).status_code

    statuses = Counter(harness.threads.map(ask, range(300)))
    assert statuses == {200: 300}
    for name in pods.ports:
        counts = pods.counts(name)
        assert counts["most_busy"] == 2
        assert counts["refused"] == 0
    harness.wait_idle(pods)


def test_two_gateways_load_once(harness: GatewayHarness, second_gateway: servers.Gateway) -> None:
    pods = harness.start_pods("pod-a", "pod-b", "pod-c", slots=2)
    for _ in range(5):
        spec = harness.declare(routing=QUEUEING)
        harness.wait_synced(second_gateway)
        urls = [harness.url_of(spec), harness.url_of(spec, second_gateway)] * 4
        before = pods.total("loads")
        answers = list(harness.threads.map(harness.client.post, urls))
        assert [answer.status_code for answer in answers] == [200] * 8
        assert pods.total("loads") == before + 1


def test_reservations_of_a_killed_gateway_expire(harness: GatewayHarness, tmp_path: Path) -> None:
    spec = harness.declare(routing=QUEUEING)
    pods = harness.start_pods("pod-a", warm=spec)
    with servers.gateway(
        tmp_path, redis_url=harness.redis_url, pool=harness.pool, reservation_ttl=2.0
    ) as dying:
        harness.wait_synced(dying)
        url = harness.url_of(spec, dying)
        lost = harness.threads.submit(
            httpx.post, url, headers={"x-test": "delay=hold"}, trust_env=False, timeout=120
        )
        wait_counts(pods, "pod-a", busy=1)
        assert harness.slots_used("pod-a") == 1
        waiting = harness.predict_in_background(spec)
        harness.wait_queued(1)
        dying.process.kill()
        assert isinstance(lost.exception(), httpx.TransportError)
        assert waiting.result().status_code == 200
        harness.wait_idle(pods)


def test_a_long_request_keeps_its_reservation(
    harness: GatewayHarness, short_timeout_gateway: servers.Gateway
) -> None:
    spec = harness.declare(routing=QUEUEING)
    pods = harness.start_pods("pod-a", warm=spec)
    harness.wait_synced(short_timeout_gateway)
    headers = {"x-test": "delay=3.0"}
    asked = harness.threads.submit(
        harness.client.post,
        harness.url_of(spec, short_timeout_gateway),
        headers=headers,
        content=b"",
    )
    wait_counts(pods, "pod-a", busy=1)
    while not asked.done():
        assert harness.slots_used("pod-a") == 1 or pods.counts("pod-a")["executed"] == 1
    assert asked.result().status_code == 200


def test_sigterm_lets_requests_in_flight_finish(harness: GatewayHarness, tmp_path: Path) -> None:
    spec = harness.declare(routing=QUEUEING)
    pods = harness.start_pods("pod-a", warm=spec)
    with servers.gateway(tmp_path, redis_url=harness.redis_url, pool=harness.pool) as leaving:
        harness.wait_synced(leaving)
        url = harness.url_of(spec, leaving)
        headers = {"x-test": "delay=hold"}
        held = harness.threads.submit(harness.client.post, url, headers=headers, content=b"1")
        wait_counts(pods, "pod-a", busy=1)
        queued = harness.threads.submit(harness.client.post, url, content=b"2")
        servers.wait_until(
            lambda: "waiting_requests 1.0" in harness.client.get(f"{leaving.url}/metrics").text
        )
        leaving.process.send_signal(signal.SIGTERM)

        def is_closed() -> bool:
            try:
                exchange_bytes(leaving.port, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            except ConnectionError:
                return True
            return False

        servers.wait_until(is_closed, what="no new connections")
        assert leaving.process.poll() is None
        pods.control("pod-a", "release")
        assert (held.result().status_code, held.result().content) == (200, b"1")
        assert (queued.result().status_code, queued.result().content) == (200, b"2")
        assert leaving.process.wait(60) == 0, leaving.log
        assert harness.slots_used("pod-a") == 0
        assert "Traceback" not in leaving.log


def test_a_drain_ends_at_its_timeout(harness: GatewayHarness, tmp_path: Path) -> None:
    spec = harness.declare()
    pods = harness.start_pods("pod-a", warm=spec)
    with servers.gateway(
        tmp_path, redis_url=harness.redis_url, pool=harness.pool, drain_timeout=1
    ) as leaving:
        harness.wait_synced(leaving)
        headers = {"x-test": "delay=hold"}
        url = harness.url_of(spec, leaving)
        lost = harness.threads.submit(
            httpx.post, url, headers=headers, content=b"", trust_env=False, timeout=120
        )
        wait_counts(pods, "pod-a", busy=1)
        leaving.process.send_signal(signal.SIGTERM)
        assert leaving.process.wait(60) == 0, leaving.log
        assert lost.result().status_code == 503
        assert "shut down" in lost.result().json()["error"]
        harness.wait_idle(pods)


def test_a_stalled_body_is_408(
    harness: GatewayHarness, short_timeout_gateway: servers.Gateway
) -> None:
    spec = harness.declare()
    harness.wait_synced(short_timeout_gateway)
    path = f"/v1/models/{spec.name.name}:predict"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
    for begun in (b"", b"ab"):
        answer = exchange_bytes(short_timeout_gateway.port, head.encode() + begun)
        assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert b"received %d bytes" % len(begun) in answer


def test_invalid_settings_are_reported_together(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="ended") as caught,
        servers.gateway(
            tmp_path, redis_url="redis://127.0.0.1:1", max_body_bytes=0, drain_timeout="soon"
        ),
    ):
        pass
    assert "--max-body-bytes" in str(caught.value)
    assert "--drain-timeout" in str(caught.value)


def test_the_policy_header_can_be_turned_off(
    harness: GatewayHarness, short_timeout_gateway: servers.Gateway
) -> None:
    spec = harness.declare()
    harness.start_pods("pod-a", warm=spec)
    harness.wait_synced(short_timeout_gateway)
    url = harness.url_of(spec, short_timeout_gateway)
    assert harness.client.post(url, content=b"").status_code == 200
    answer = harness.client.post(url, headers={"x-pilotlight-policy": "random"})
    assert answer.status_code == 400
    assert "--allow-policy-header" in answer.json()["error"]
