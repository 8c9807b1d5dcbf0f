"""New connections beside many busy ones: they once stood in the accept queue for seconds."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests import servers
from tests.gateway.asynchronous import run_async
from tests.gateway.gateway_harness import GatewayHarness

BUSY, NEW = 300, 212
MOST_ROUNDS = 10
"""Responses to each client before a new one's first: measured 0.9, with one accept per turn 200."""
REQUEST = b"POST /v1/models/nobody:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


@dataclass
class Clients:
    """Counts the responses to all clients, as the measure of how long a new one waits."""

    received: int = 0


@dataclass
class Client(asyncio.Protocol):
    """Sends the next request as soon as the response arrives."""

    clients: Clients
    transport: asyncio.Transport = field(init=False)
    is_served: asyncio.Event = field(default_factory=asyncio.Event)
    waited: int = 0
    """Responses to all clients from its request on to its first response."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.waited = -self.clients.received
        self.transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        self.clients.received += 1
        if not self.is_served.is_set():
            self.waited += self.clients.received
            self.is_served.set()
        self.transport.write(REQUEST)


async def connect(port: int, clients: Clients, count: int) -> list[Client]:
    """Clients that have a response each."""
    loop = asyncio.get_running_loop()
    opened = [
        loop.create_connection(partial(Client, clients), "127.0.0.1", port) for _ in range(count)
    ]
    connected = [client for _, client in await asyncio.gather(*opened)]
    for client in connected:
        await client.is_served.wait()
    return connected


@pytest.mark.slow
@run_async
async def test_new_clients_are_served_beside_many_busy_ones(
    redis: servers.RedisServer, tmp_path: Path
) -> None:
    with servers.gateway(tmp_path, redis_url=redis.url) as gateway:
        os.sched_setaffinity(gateway.process.pid, {min(os.sched_getaffinity(0))})
        async with asyncio.timeout(120):
            clients = Clients()
            busy = await connect(gateway.port, clients, BUSY)
            new = await connect(gateway.port, clients, NEW)
        for client in (*busy, *new):
            client.transport.abort()
    assert max(client.waited for client in new) < MOST_ROUNDS * (BUSY + NEW)


def test_probes_have_a_port_of_their_own(redis: servers.RedisServer, tmp_path: Path) -> None:
    health_port = servers.free_port()
    with servers.gateway(tmp_path, redis_url=redis.url, health_port=health_port) as started:
        for path in ("/healthz", "/readyz"):
            url = f"http://127.0.0.1:{health_port}{path}"
            assert httpx.get(url, trust_env=False, verify=False, timeout=60).status_code == 200
        assert started.is_ready()
        assert probe(f"http://127.0.0.1:{health_port}/").status_code == 404


def probe(url: str) -> httpx.Response:
    return httpx.get(url, trust_env=False, verify=False, timeout=60)


def test_what_waited_half_of_its_deadline_is_not_begun(harness: GatewayHarness) -> None:
    """The gateway stands still while connections with requests are opened."""
    spec = harness.declare("m")
    harness.start_pods("pod-a", warm=(spec,))
    assert harness.predict(spec).status_code == 200
    port, path = harness.gateway.port, f"/v1/models/{spec.name.name}:predict"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n"
    received: dict[str, bytes] = {}
    with contextlib.ExitStack() as stack:
        harness.gateway.process.send_signal(signal.SIGSTOP)
        try:
            connections = {}
            for deadline in ("", "x-pilotlight-deadline-ms: 800\r\n"):
                connection = socket.create_connection(("127.0.0.1", port), timeout=60)
                connections[deadline] = stack.enter_context(connection)
                connection.sendall(f"{head}{deadline}\r\n{{}}".encode())
            time.sleep(0.6)  # the wait is the test
        finally:
            harness.gateway.process.send_signal(signal.SIGCONT)
        for deadline, connection in connections.items():
            while data := connection.recv(65536):
                received[deadline] = received.get(deadline, b"") + data
    without, late = received.values()
    assert without.startswith(b"HTTP/1.1 200")
    assert late.startswith(b"HTTP/1.1 504")
    assert b"x-pilotlight-reason: deadline" in late
    assert b"had not begun" in late
