"""A rolling restart of gateways under load loses no request."""

from __future__ import annotations

import signal
import socket
import threading
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from registry.domain.model import ModelSpec
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, wait_counts

pytestmark = pytest.mark.slow

CLIENTS = 6


def wait_until_not_ready(client: httpx.Client, gateway: servers.Gateway) -> None:
    servers.wait_until(
        lambda: client.get(f"{gateway.url}/readyz").status_code == 503, what="not ready"
    )


class LoadBalancer:
    """As a Service: new requests go to ready gateways in turn, on connections that stay open."""

    def __init__(self, harness: GatewayHarness, spec: ModelSpec) -> None:
        self._harness = harness
        self._spec = spec
        self.endpoints: list[servers.Gateway] = []
        self.outcomes: Counter[object] = Counter()
        self._stop = threading.Event()
        self._running: list[Future[None]] = []

    def __enter__(self) -> LoadBalancer:
        self._running = [self._harness.threads.submit(self._send, n) for n in range(CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._running:
            each.result()

    def _send(self, number: int) -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            while not self._stop.is_set():
                number += 1
                endpoints = self.endpoints
                url = self._harness.url_of(self._spec, endpoints[number % len(endpoints)])
                try:
                    self.outcomes[client.post(url, content=b"{}").status_code] += 1
                except httpx.TransportError as error:
                    self.outcomes[repr(error)] += 1

    def wait_for_requests(self, count: int) -> None:
        until = self.outcomes.total() + count
        servers.wait_until(lambda: self.outcomes.total() >= until, what="more requests")


def test_no_request_is_lost_while_gateways_are_replaced_one_by_one(
    harness: GatewayHarness, tmp_path: Path
) -> None:
    spec, _ = harness.start_warm_pod()

    def start(name: str, stack: ExitStack) -> servers.Gateway:
        started = stack.enter_context(
            servers.gateway(
                tmp_path / name, redis_url=harness.redis_url, pool=harness.pool, shutdown_delay=10
            )
        )
        harness.wait_synced(started)
        return started

    with ExitStack() as stack, httpx.Client(trust_env=False, timeout=60) as observer:
        old = [start("a", stack), start("b", stack)]
        balancer = LoadBalancer(harness, spec)
        balancer.endpoints = list(old)
        with balancer:
            for leaving in old:
                balancer.wait_for_requests(100)
                balancer.endpoints = [*balancer.endpoints, start(f"new-{leaving.port}", stack)]
                leaving.process.send_signal(signal.SIGTERM)
                wait_until_not_ready(observer, leaving)
                balancer.wait_for_requests(20)  # the Service has not removed it yet
                assert leaving.process.poll() is None
                balancer.endpoints = [each for each in balancer.endpoints if each is not leaving]
                assert leaving.process.wait(60) == 0, leaving.log
            balancer.wait_for_requests(100)
        assert set(balancer.outcomes) == {200}


def test_a_leaving_gateway_closes_each_connection_with_its_response(
    harness: GatewayHarness, tmp_path: Path
) -> None:
    spec, _ = harness.start_warm_pod()
    with (
        servers.gateway(
            tmp_path, redis_url=harness.redis_url, pool=harness.pool, shutdown_delay=30
        ) as leaving,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        harness.wait_synced(leaving)
        url = harness.url_of(spec, leaving)
        assert "connection" not in client.post(url, content=b"{}").headers
        leaving.process.send_signal(signal.SIGTERM)
        wait_until_not_ready(client, leaving)
        for answer in (client.post(url, content=b"{}"), client.get(f"{leaving.url}/v1/models")):
            assert answer.status_code == 200
            assert answer.headers["connection"] == "close"
        leaving.process.send_signal(signal.SIGTERM)  # at once
        assert leaving.process.wait(60) == 0, leaving.log


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/workflows"), ("POST", "/v1/workflows/w:run"), ("POST", "/serving/a/g/")],
)
def test_a_leaving_gateway_refuses_workflows_once_their_scheduler_has_ended(
    harness: GatewayHarness, tmp_path: Path, method: str, path: str
) -> None:
    with (
        servers.gateway(
            tmp_path,
            redis_url=harness.redis_url,
            pool=harness.pool,
            shutdown_delay=30,
            workflows_url=f"http://127.0.0.1:{servers.free_port()}",
        ) as leaving,
        httpx.Client(trust_env=False, base_url=leaving.url, timeout=60) as client,
    ):
        before = client.request(method, path)
        assert (before.status_code, before.headers["x-pilotlight-reason"]) == (503, "not-ready")
        leaving.process.send_signal(signal.SIGTERM)
        wait_until_not_ready(client, leaving)
        refused = client.request(method, path)
        assert (refused.status_code, refused.headers["x-pilotlight-reason"]) == (503, "draining")
        assert refused.headers["retry-after"] == "1"
        leaving.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("path", ["/v1/models/NAME:predict", "/v1/workflows/w:run"])
def test_a_draining_gateway_refuses_workflows_as_it_does_inference(
    harness: GatewayHarness, tmp_path: Path, path: str
) -> None:
    """On a connection that a request holds open."""
    spec, pods = harness.start_warm_pod()
    inference = f"/v1/models/{spec.name.name}:predict"
    head = "POST {} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n{}\r\n{{}}"
    held = head.format(inference, "x-test: around=hold\r\n")
    follower = head.format(path.replace("NAME", spec.name.name), "")
    with (
        servers.gateway(tmp_path, redis_url=harness.redis_url, pool=harness.pool) as draining,
        socket.create_connection(("127.0.0.1", draining.port), timeout=60) as connection,
    ):
        harness.wait_synced(draining)
        connection.sendall((held + follower).encode())
        wait_counts(pods, "pod-a", busy=1)
        draining.process.send_signal(signal.SIGTERM)
        servers.wait_until(lambda: not accepts(draining.port), what="draining")
        pods.control("pod-a", "release")
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    first, _, second = received.rpartition(b"HTTP/1.1 ")
    assert first.startswith(b"HTTP/1.1 200 "), received
    assert second.startswith(b"503 "), received
    assert b"x-pilotlight-reason: draining" in second
    assert b"retry-after: 1" in second


def accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            return True
    except ConnectionRefusedError:
        return False
