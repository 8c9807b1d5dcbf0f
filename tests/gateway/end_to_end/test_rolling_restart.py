"""A rolling restart of gateways under load loses no request."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from tests import servers

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from registry.domain.model import ModelSpec
    from tests.gateway.gateway_harness import GatewayHarness

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
                tmp_path / name, redis_url=harness.redis_url, pool=harness.pool, shutdown_delay=2
            )
        )
        harness.wait_synced(started)
        return started

    with ExitStack() as stack, httpx.Client(trust_env=False) as observer:
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
        httpx.Client(trust_env=False) as client,
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
