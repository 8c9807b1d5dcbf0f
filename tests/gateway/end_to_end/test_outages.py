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
from tests.gateway.conftest import Floor, exchange_bytes, wait_counts
from tests.gateway.telemetry.test_arrival_counter import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from registry.redis.client import Registry

QUEUEING = RoutingPolicy.COLOCATION_QUEUEING


@pytest.fixture
def lone_floor(
    own_redis: servers.RedisServer, client: httpx.Client, tmp_path: Path
) -> Iterator[Floor]:
    """A gateway of its own on a Redis of its own."""
    with ExitStack() as stack:
        gateway = stack.enter_context(
            servers.gateway(tmp_path / "gateway", redis_url=own_redis.url, pool="lone")
        )
        floor = Floor(own_redis.url, "lone", gateway, client, stack)
        yield floor
        floor.threads.shutdown(cancel_futures=True)


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
def impatient_gateway(
    shared_gateway: tuple[servers.Gateway, str],
    redis: servers.RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Gateway]:
    """Another one, with settings that tests would else wait for: it may run out of time itself."""
    with servers.gateway(
        tmp_path_factory.mktemp("impatient"),
        redis_url=redis.url,
        pool=shared_gateway[1],
        reservation_ttl=2.0,
        body_timeout=0.2,
        allow_policy_header="false",
    ) as started:
        yield started


# Redis


def test_arrivals_of_an_outage_are_told_afterwards(
    lone_floor: Floor, own_redis: servers.RedisServer
) -> None:
    floor = lone_floor
    spec = floor.declare(routing=QUEUEING)
    floor.pods("pod-a", slots=2, warm=spec)
    assert floor.predict(spec).status_code == 200
    servers.wait_until(lambda: counted(floor, spec.name) == 1, what="the first one counted")
    own_redis.stop()
    for _ in range(3):
        assert floor.predict(spec).status_code == 200
    own_redis.start()
    servers.wait_until(floor.redis_answers, what="Redis has read its data")
    servers.wait_until(lambda: counted(floor, spec.name) == 4, what="those of the outage, too")


def test_warm_requests_go_on_without_redis_and_all_heals(
    lone_floor: Floor, own_redis: servers.RedisServer
) -> None:
    floor = lone_floor
    spec = floor.declare(routing=QUEUEING)
    pods = floor.pods("pod-a", slots=2, warm=spec)
    held = floor.in_background(spec, x_test="around=hold")
    wait_counts(pods, "pod-a", busy=1)
    own_redis.stop()
    answers = [floor.predict(spec, x_test="answer=headers") for _ in range(20)]
    assert Counter(answer.status_code for answer in answers) == {200: 20}
    assert {answer.headers["x-pilotlight-start"] for answer in answers} == {"warm"}
    assert floor.client.get(f"{floor.gateway.url}/readyz").status_code == 200
    own_redis.start()
    pods.control("pod-a", "release")
    assert held.result().status_code == 200
    servers.wait_until(floor.redis_answers, what="Redis answers")
    floor.wait_caught_up()
    floor.wait_idle(pods)
    assert floor.predict(spec).headers["x-pilotlight-start"] == "warm"
    assert pods.counts("pod-a")["refused"] == 0


def test_the_age_of_the_copy_is_seen_while_redis_is_away(
    lone_floor: Floor, own_redis: servers.RedisServer
) -> None:
    own_redis.stop()
    servers.wait_until(
        lambda: lone_floor.metric("pilotlight_gateway_registry_age_seconds") > 1.5, what="it ages"
    )
    own_redis.start()
    servers.wait_until(
        lambda: lone_floor.metric("pilotlight_gateway_registry_age_seconds") < 1.0, what="it is new"
    )


def test_an_emptied_redis_is_filled_again_by_the_pods(
    lone_floor: Floor,
) -> None:
    floor = lone_floor
    spec = floor.declare(routing=QUEUEING)
    pods = floor.pods("pod-a", warm=spec)

    async def empty(registry: Registry) -> None:
        redis = redis_client.from_url(floor.redis_url)
        await redis.flushall()
        await redis.aclose()
        await registry.put_models([spec])

    floor.do(empty)
    servers.wait_until(
        lambda: floor.predict(spec).headers.get("x-pilotlight-start") == "warm", what="warm again"
    )
    floor.wait_idle(pods)
    assert pods.counts("pod-a")["loads"] == 0


def test_a_gateway_that_has_never_read_the_registry_says_so(
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


def test_two_gateways_never_exceed_the_slots(floor: Floor, second_gateway: servers.Gateway) -> None:
    spec = floor.declare(routing=QUEUEING)
    pods = floor.pods("pod-a", "pod-b", slots=2, warm=spec)
    floor.wait_caught_up(second_gateway)
    urls = [floor.url_of(spec), floor.url_of(spec, second_gateway)]

    def ask(n: int) -> int:
        headers = {"x-test": "delay=0.002"}
        return floor.client.post(urls[n % 2], content=b"{}", headers=headers).status_code

    statuses = Counter(floor.threads.map(ask, range(300)))
    assert statuses == {200: 300}
    for name in pods.ports:
        counts = pods.counts(name)
        assert counts["most_busy"] == 2
        assert counts["refused"] == 0
    floor.wait_idle(pods)


def test_two_gateways_load_once(floor: Floor, second_gateway: servers.Gateway) -> None:
    pods = floor.pods("pod-a", "pod-b", "pod-c", slots=2)
    for _ in range(5):
        spec = floor.declare(routing=QUEUEING)
        floor.wait_caught_up(second_gateway)
        urls = [floor.url_of(spec), floor.url_of(spec, second_gateway)] * 4
        before = pods.total("loads")
        answers = list(floor.threads.map(floor.client.post, urls))
        assert [answer.status_code for answer in answers] == [200] * 8
        assert pods.total("loads") == before + 1


def test_a_killed_gateways_reservations_expire(floor: Floor, tmp_path: Path) -> None:
    spec = floor.declare(routing=QUEUEING)
    pods = floor.pods("pod-a", warm=spec)
    with servers.gateway(
        tmp_path, redis_url=floor.redis_url, pool=floor.pool, reservation_ttl=2.0
    ) as dying:
        floor.wait_caught_up(dying)
        url = floor.url_of(spec, dying)
        lost = floor.threads.submit(
            httpx.post, url, headers={"x-test": "delay=hold"}, trust_env=False, timeout=120
        )
        wait_counts(pods, "pod-a", busy=1)
        assert floor.slots_used("pod-a") == 1
        waiting = floor.in_background(spec)
        floor.wait_waiting(1)
        dying.process.kill()
        assert isinstance(lost.exception(), httpx.TransportError)
        assert waiting.result().status_code == 200
        floor.wait_idle(pods)


def test_a_long_request_keeps_its_reservation(
    floor: Floor, impatient_gateway: servers.Gateway
) -> None:
    spec = floor.declare(routing=QUEUEING)
    pods = floor.pods("pod-a", warm=spec)
    floor.wait_caught_up(impatient_gateway)
    headers = {"x-test": "delay=3.0"}
    asked = floor.threads.submit(
        floor.client.post, floor.url_of(spec, impatient_gateway), headers=headers, content=b""
    )
    wait_counts(pods, "pod-a", busy=1)
    while not asked.done():
        assert floor.slots_used("pod-a") == 1 or pods.counts("pod-a")["executed"] == 1
    assert asked.result().status_code == 200


def test_sigterm_lets_requests_in_flight_finish(floor: Floor, tmp_path: Path) -> None:
    spec = floor.declare(routing=QUEUEING)
    pods = floor.pods("pod-a", warm=spec)
    with servers.gateway(tmp_path, redis_url=floor.redis_url, pool=floor.pool) as leaving:
        floor.wait_caught_up(leaving)
        url = floor.url_of(spec, leaving)
        headers = {"x-test": "delay=hold"}
        held = floor.threads.submit(floor.client.post, url, headers=headers, content=b"1")
        wait_counts(pods, "pod-a", busy=1)
        queued = floor.threads.submit(floor.client.post, url, content=b"2")
        servers.wait_until(
            lambda: "waiting_requests 1.0" in floor.client.get(f"{leaving.url}/metrics").text
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
        assert floor.slots_used("pod-a") == 0
        assert "Traceback" not in leaving.log


def test_a_drain_ends_by_its_timeout(floor: Floor, tmp_path: Path) -> None:
    spec = floor.declare()
    pods = floor.pods("pod-a", warm=spec)
    with servers.gateway(
        tmp_path, redis_url=floor.redis_url, pool=floor.pool, drain_timeout=1
    ) as leaving:
        floor.wait_caught_up(leaving)
        headers = {"x-test": "delay=hold"}
        url = floor.url_of(spec, leaving)
        lost = floor.threads.submit(
            httpx.post, url, headers=headers, content=b"", trust_env=False, timeout=120
        )
        wait_counts(pods, "pod-a", busy=1)
        leaving.process.send_signal(signal.SIGTERM)
        assert leaving.process.wait(60) == 0, leaving.log
        assert lost.result().status_code == 503
        assert "shut down" in lost.result().json()["error"]
        floor.wait_idle(pods)


def test_a_body_that_never_begins_is_408(floor: Floor, impatient_gateway: servers.Gateway) -> None:
    spec = floor.declare()
    floor.wait_caught_up(impatient_gateway)
    path = f"/v1/models/{spec.name.name}:predict"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
    for begun in (b"", b"ab"):
        answer = exchange_bytes(impatient_gateway.port, head.encode() + begun)
        assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert b"received %d bytes" % len(begun) in answer


def test_settings_are_refused_together(tmp_path: Path) -> None:
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
    floor: Floor, impatient_gateway: servers.Gateway
) -> None:
    spec = floor.declare()
    floor.pods("pod-a", warm=spec)
    floor.wait_caught_up(impatient_gateway)
    url = floor.url_of(spec, impatient_gateway)
    assert floor.client.post(url, content=b"").status_code == 200
    answer = floor.client.post(url, headers={"x-pilotlight-policy": "random"})
    assert answer.status_code == 400
    assert "--allow-policy-header" in answer.json()["error"]
