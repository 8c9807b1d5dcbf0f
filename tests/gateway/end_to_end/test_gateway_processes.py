"""Several gateways of one pool, their shutdown and their settings."""

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from registry.domain.model import RoutingPolicy
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, exchange_bytes, wait_counts

pytestmark = pytest.mark.slow

QUEUEING = RoutingPolicy.COLOCATION_QUEUEING
SHORT_RESERVATIONS = ("tests.with_constants", "gateway.dispatch.reservations:TTL_S=2.0", "gateway")


@pytest.fixture(scope="module")
def second_gateway(another_gateway: Callable[..., servers.Gateway]) -> servers.Gateway:
    return another_gateway()


@pytest.fixture(scope="module")
def short_timeout_gateway(another_gateway: Callable[..., servers.Gateway]) -> servers.Gateway:
    """With short timeouts, which the tests wait for."""
    return another_gateway(
        program=SHORT_RESERVATIONS, body_timeout=0.2, allow_policy_header="false"
    )


def test_an_explanation_says_which_gateway_decided(
    harness: GatewayHarness, second_gateway: servers.Gateway
) -> None:
    spec, _ = harness.start_warm_pod()
    served = harness.predict(spec, x_request_id="asked-elsewhere")
    decider = served.headers["x-pilotlight-gateway"]
    path = "/pilotlight/v1/explain/asked-elsewhere"
    found = harness.client.get(f"{harness.gateway.url}{path}")
    assert found.json()["gateway"] == decider
    elsewhere = harness.client.get(f"{second_gateway.url}{path}")
    assert elsewhere.status_code == 404
    assert elsewhere.json()["gateway"] != decider
    assert "x-pilotlight-gateway" in elsewhere.json()["error"]
    refused = harness.client.post(f"{second_gateway.url}/v1/models/nobody:predict", json={})
    assert refused.headers["x-pilotlight-gateway"] == elsewhere.json()["gateway"]


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
        assert counts["max_busy"] == 2
        assert counts["refused"] == 0
    harness.wait_idle(pods)


def test_two_gateways_load_once(harness: GatewayHarness, second_gateway: servers.Gateway) -> None:
    pods = harness.start_pods("pod-a", "pod-b", "pod-c", slots=2)
    for _ in range(5):
        spec = harness.declare(routing=QUEUEING)
        harness.wait_synced(second_gateway)
        urls = [harness.url_of(spec), harness.url_of(spec, second_gateway)] * 4
        before = pods.total("loads")
        responses = list(harness.threads.map(harness.client.post, urls))
        assert [response.status_code for response in responses] == [200] * 8
        assert pods.total("loads") == before + 1


def test_reservations_of_a_killed_gateway_expire(harness: GatewayHarness, tmp_path: Path) -> None:
    spec, pods = harness.start_warm_pod(routing=QUEUEING)
    with servers.gateway(
        tmp_path, redis_url=harness.redis_url, pool=harness.pool, program=SHORT_RESERVATIONS
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
    spec, pods = harness.start_warm_pod(routing=QUEUEING)
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
    spec, pods = harness.start_warm_pod(routing=QUEUEING)
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
    spec, pods = harness.start_warm_pod()
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
        response = exchange_bytes(short_timeout_gateway.port, head.encode() + begun)
        assert response.startswith(b"HTTP/1.1 408 "), response
        assert b"received %d bytes" % len(begun) in response


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
    spec, _ = harness.start_warm_pod()
    harness.wait_synced(short_timeout_gateway)
    url = harness.url_of(spec, short_timeout_gateway)
    assert harness.client.post(url, content=b"").status_code == 200
    response = harness.client.post(url, headers={"x-pilotlight-policy": "random"})
    assert response.status_code == 400
    assert "--allow-policy-header" in response.json()["error"]


def test_fields_of_a_warning_are_in_the_log(redis: servers.RedisServer, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "team").write_text("k" * 32)
    with servers.gateway(tmp_path / "gateway", redis_url=redis.url, api_keys=keys) as gateway:
        (keys / "team").write_text("short")
        servers.wait_until(lambda: "cannot read tenant files" in gateway.log, what="the warning")
        [line] = [each for each in gateway.log.splitlines() if "cannot read tenant" in each]
    assert f"stays in use error={keys / 'team'}: a key must have 16 bytes" in line
