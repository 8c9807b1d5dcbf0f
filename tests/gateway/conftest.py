"""Servers shared by the gateway's tests: one Redis, gateway processes, pods of the pod program."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from registry.domain.model import ModelName, ModelPolicy, ModelSpec
from registry.domain.pod import PodInfo
from registry.domain.reservation import ClaimScope
from registry.errors import RegistryUnavailable
from tests import servers
from tests.gateway.dispatcher_harness import Test, WithDesk, a_desk
from tests.registry.redis.clients import Result, act

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from registry.domain.model import LoadFailure
    from registry.redis.client import Registry

_pools = itertools.count(1)
_models = itertools.count(1)


Background = Future[httpx.Response]


@dataclass
class Pods:
    """Pods of one process of the pod program."""

    process: subprocess.Popen[bytes]
    ports: dict[str, int]
    client: httpx.Client

    def control(self, pod: str, order: str, text: str = "") -> dict[str, Any]:
        """Give an order; returns the pod's counters."""
        url = f"http://127.0.0.1:{self.ports[pod]}/control/{order}"
        answer: dict[str, Any] = self.client.post(url, content=text).json()
        return answer

    def counts(self, pod: str) -> dict[str, Any]:
        """What the pod has counted so far."""
        return self.control(pod, "counts")

    def total(self, counter: str) -> int:
        """A counter over all pods."""
        return sum(int(self.counts(pod)[counter]) for pod in self.ports)

    def kill(self) -> None:
        """As a crash would."""
        self.process.kill()
        self.process.wait()


@dataclass
class Floor:
    """A gateway, its pool, and what a test puts there."""

    redis_url: str
    pool: str
    gateway: servers.Gateway
    client: httpx.Client
    stack: ExitStack = field(default_factory=ExitStack)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(64))

    def do(self, action: Callable[[Registry], Awaitable[Result]]) -> Result:
        """Run something against the registry, as another component would."""
        return act(self.redis_url, self.pool, action)

    def declare(self, name: str = "", *, namespace: str = "default", **policy: Any) -> ModelSpec:
        """Declare a model that no other test uses; return when the gateway knows it."""
        name = name or f"m{next(_models)}"
        spec = ModelSpec(
            ModelName(namespace, name), f"file:///{name}", policy=ModelPolicy(**policy)
        )
        self.do(lambda registry: registry.put_models([spec]))
        self.wait_caught_up()
        return spec

    def fail_load(self, failure: LoadFailure) -> None:
        """Let a load fail at a pod that then leaves; return when the gateway knows."""

        async def fail(registry: Registry) -> None:
            epoch = await registry.register_pod(PodInfo("failing", "127.0.0.1:1", "failing"))
            token = await registry.claim_load("failing", epoch, failure.key, ClaimScope.POD)
            assert token is not None
            await registry.fail_load("failing", epoch, failure.key, token, failure)
            await registry.deregister_pod("failing", epoch)

        self.do(fail)
        self.wait_caught_up()

    def redis_answers(self) -> bool:
        """Whether Redis takes our operations; it does not while it reads its own data."""
        try:
            self.do(lambda registry: registry.transactions.sync())
        except RegistryUnavailable:
            return False
        return True

    def wait_caught_up(self, gateway: servers.Gateway | None = None) -> None:
        """Return when the gateway's copy has everything that Redis has now."""
        version = self.do(lambda registry: registry.transactions.sync())[0].changes
        url = (gateway or self.gateway).url
        servers.wait_until(
            lambda: self.client.get(f"{url}/readyz").json()["registry_version"] >= version,
            what="gateway caught up",
        )

    def pods(
        self, *names: str, warm: ModelSpec | tuple[ModelSpec, ...] = (), **options: object
    ) -> Pods:
        """Start pods in one process, warm for these models; return when the gateway knows."""
        started = self.stack.enter_context(self.pods_context(*names, **options))
        specs = warm if isinstance(warm, tuple) else (warm,)
        for spec in specs:
            for name in names:
                started.control(name, "warm", spec.key)
        self.wait_caught_up()
        return started

    @contextlib.contextmanager
    def pods_context(self, *names: str, **options: object) -> Iterator[Pods]:
        """Pods that a test ends itself, if it likes."""
        flags = {"redis_url": self.redis_url, "pool": self.pool, "names": ",".join(names)}
        process = subprocess.Popen(
            [
                sys.executable,
                *("-m", "tests.gateway.pod_program"),
                *(
                    text
                    for name, value in {**flags, **options}.items()
                    for text in (f"--{name.replace('_', '-')}", str(value))
                ),
            ],
            cwd=servers.REPOSITORY,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            yield Pods(process, json.loads(process.stdout.readline())["ports"], self.client)
        finally:
            servers.end_process(process)

    # Requests

    def predict(self, spec: ModelSpec, content: Any = b"{}", **headers: str) -> httpx.Response:
        """A V1 request by path."""
        return self.client.post(self.url_of(spec), content=content, headers=_named(headers))

    def url_of(self, spec: ModelSpec, gateway: servers.Gateway | None = None) -> str:
        """The URL of a model's V1 inference."""
        url, name = (gateway or self.gateway).url, spec.name
        return f"{url}/serving/{name.namespace}/{name.name}/v1/models/{name.name}:predict"

    def explain(self, request_id: str) -> dict[str, Any]:
        """The gateway's explanation of a request."""
        found = self.client.get(f"{self.gateway.url}/pilotlight/v1/explain/{request_id}")
        assert found.status_code == 200, found.text
        explanation: dict[str, Any] = found.json()
        return explanation

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have the labels."""
        return metric(self.client.get(f"{self.gateway.url}/metrics").text, name, **labels)

    def slots_used(self, pod: str) -> int:
        """Slots in use as Redis counts them."""

        async def look(registry: Registry) -> int:
            await registry.transactions.submit("sync")
            _, _, snapshot = await registry.transactions.snapshot()
            return next((int(entry[6]) for entry in snapshot[0] if entry[0] == pod), -1)

        return self.do(look)

    def in_background(self, spec: ModelSpec, content: Any = b"{}", **headers: str) -> Background:
        """A V1 request by path in a thread of its own."""
        return self.threads.submit(self.predict, spec, content, **headers)

    def wait_waiting(self, count: int) -> None:
        """Return when so many requests wait in the gateway."""
        servers.wait_until(
            lambda: self.metric("pilotlight_gateway_waiting_requests") == count,
            what=f"{count} requests wait",
        )

    def wait_idle(self, pods: Pods) -> None:
        """Return when no pod is busy, in its own eyes and in Redis', and nothing is reserved."""

        def is_idle() -> bool:
            return (
                pods.total("busy") == 0
                and self.metric("pilotlight_gateway_reservations") == 0
                and all(self.slots_used(pod) <= 0 for pod in pods.ports)
            )

        servers.wait_until(is_idle, what="pods idle")


def wait_counts(pods: Pods, pod: str, **counts: int) -> None:
    """Return when the pod has counted so."""
    servers.wait_until(lambda: counts.items() <= pods.counts(pod).items(), what=f"{pod}: {counts}")


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def metric(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have the labels, in Prometheus' text format."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.partition("{")[0].partition(" ")[0] == name and all(w in line for w in wanted)
    )


@pytest.fixture
def pool() -> str:
    """A pool that no other test uses."""
    return f"gateway-{next(_pools)}"


@pytest.fixture(scope="session")
def client() -> Iterator[httpx.Client]:
    # No expiry: a thread that closes an idle connection may close another's that is in use.
    limits = httpx.Limits(keepalive_expiry=None)
    with httpx.Client(trust_env=False, timeout=120, limits=limits) as shared:
        yield shared


@pytest.fixture(scope="module")
def shared_gateway(
    redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[servers.Gateway, str]]:
    """A gateway for all tests of a module, and its pool."""
    pool = f"gateway-{next(_pools)}"
    folder = tmp_path_factory.mktemp("gateway")
    with servers.gateway(folder, redis_url=redis.url, pool=pool) as started:
        yield started, pool


@pytest.fixture
def floor(
    redis: servers.RedisServer,
    shared_gateway: tuple[servers.Gateway, str],
    client: httpx.Client,
) -> Iterator[Floor]:
    """The module's gateway, in a pool that has this test's pods only."""
    gateway, pool = shared_gateway
    with ExitStack() as stack:
        floor = Floor(redis.url, pool, gateway, client, stack)
        yield floor
        floor.threads.shutdown(cancel_futures=True)
    servers.wait_until(
        lambda: client.get(f"{gateway.url}/readyz").json()["pods"] == 0, what="pods gone"
    )
    assert gateway.process.poll() is None, gateway.log


def exchange_bytes(port: int, data: bytes, *, timeout_s: float = 60.0) -> bytes:
    """Send raw bytes to a server; everything it answers until it closes or says nothing more."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(data)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> bytes:
    """One answer with a declared length, or what comes until the connection closes."""
    received = b""
    while True:
        head, found, body = received.partition(b"\r\n\r\n")
        if found and b"content-length: " in head.lower():
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            if len(body) >= length:
                break
        piece = connection.recv(65536)
        if not piece:
            break
        received += piece
    return received


@pytest.fixture
def with_desk(redis: servers.RedisServer, pool: str) -> WithDesk:
    def run(test: Test) -> None:
        async def inside() -> None:
            async with a_desk(redis.url, pool) as desk, asyncio.timeout(120):
                await test(desk)

        asyncio.run(inside())

    return run
