"""A real gateway process with pods of the pod program, and requests to it."""

import contextlib
import itertools
import json
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from registry.domain.model import LoadFailure, ModelName, ModelPolicy, ModelSpec
from registry.domain.pod import PodInfo
from registry.domain.pod_state import ANY_COPIES
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from tests import servers
from tests.registry.redis.clients import Result, act

_model_numbers = itertools.count(1)


@dataclass
class PodProcess:
    """Pods in one process of the pod program."""

    process: subprocess.Popen[bytes]
    ports: dict[str, int]
    client: httpx.Client

    def control(self, pod: str, command: str, text: str = "") -> dict[str, Any]:
        """Send a command; returns the pod's counters."""
        url = f"http://127.0.0.1:{self.ports[pod]}/control/{command}"
        counters: dict[str, Any] = self.client.post(url, content=text).json()
        return counters

    def counts(self, pod: str) -> dict[str, Any]:
        return self.control(pod, "counts")

    def total(self, counter: str) -> int:
        """A counter's sum over all pods."""
        return sum(int(self.counts(pod)[counter]) for pod in self.ports)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class GatewayHarness:
    """A gateway and its pool."""

    redis_url: str
    pool: str
    gateway: servers.Gateway
    client: httpx.Client
    stack: ExitStack = field(default_factory=ExitStack)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(64))

    def run(self, action: Callable[[Registry], Awaitable[Result]]) -> Result:
        """Run something against the registry, as another component would."""
        return act(self.redis_url, self.pool, action)

    def declare(
        self, name: str = "", *, namespace: str = "default", served_name: str = "", **policy: Any
    ) -> ModelSpec:
        """Declare a model, by default with a new name; return when the gateway knows it."""
        name = name or f"m{next(_model_numbers)}"
        spec = ModelSpec(
            ModelName(namespace, name),
            f"file:///{name}",
            policy=ModelPolicy(**policy),
            served_name=served_name,
        )
        self.run(lambda registry: registry.put_models([spec]))
        self.wait_synced()
        return spec

    def fail_load(self, failure: LoadFailure) -> None:
        """Let a load fail at a pod that then deregisters; return when the gateway knows it."""

        async def fail(registry: Registry) -> None:
            epoch = await registry.register_pod(PodInfo("failing", "127.0.0.1:1", "failing"))
            token = await registry.claim_load("failing", epoch, failure.key, ANY_COPIES)
            assert token is not None
            await registry.fail_load("failing", epoch, failure.key, token, failure)
            await registry.deregister_pod("failing", epoch)

        self.run(fail)
        self.wait_synced()

    def is_redis_available(self) -> bool:
        """False also while Redis reads its own data."""
        try:
            self.run(lambda registry: registry.transactions.sync())
        except RegistryUnavailable:
            return False
        return True

    def wait_synced(self, gateway: servers.Gateway | None = None) -> None:
        """Wait until the gateway's cluster state has every change that Redis has now."""
        version = self.run(lambda registry: registry.transactions.sync())[0].changes
        url = (gateway or self.gateway).url

        def is_synced() -> bool:
            ready = self.client.get(
                f"{url}/readyz"
            ).json()  # without the pool before its first copy
            return bool(ready["registry_versions"].get(self.pool, -1) >= version)

        servers.wait_until(is_synced, what="gateway synced")

    def start_pods(
        self, *names: str, warm: ModelSpec | tuple[ModelSpec, ...] = (), **options: object
    ) -> PodProcess:
        """Start pods in one process, warm for these models; return when the gateway knows them."""
        started = self.stack.enter_context(self.running_pods(*names, **options))
        specs = warm if isinstance(warm, tuple) else (warm,)
        for spec in specs:
            for name in names:
                started.control(name, "warm", spec.key)
        self.wait_synced()
        return started

    def start_warm_pod(
        self, *, namespace: str = "default", **policy: Any
    ) -> tuple[ModelSpec, PodProcess]:
        """A new model and a pod `pod-a` that is warm for it."""
        spec = self.declare(namespace=namespace, **policy)
        return spec, self.start_pods("pod-a", warm=spec)

    def running_pods(
        self, *names: str, **options: object
    ) -> contextlib.AbstractContextManager[PodProcess]:
        return running_pods(
            *names, redis_url=self.redis_url, pool=self.pool, client=self.client, **options
        )

    # Requests

    def predict(self, spec: ModelSpec, content: Any = b"{}", **headers: str) -> httpx.Response:
        """Send a V1 request."""
        return self.client.post(self.url_of(spec), content=content, headers=_dashed(headers))

    def predict_in_background(
        self, spec: ModelSpec, content: Any = b"{}", **headers: str
    ) -> Future[httpx.Response]:
        """Send a V1 request in another thread."""
        return self.threads.submit(self.predict, spec, content, **headers)

    def hold_pod(self, pods: PodProcess, spec: ModelSpec, **headers: str) -> Future[httpx.Response]:
        """Send a request to the idle `pod-a`; return when it is there."""
        response = self.predict_in_background(spec, **headers)
        wait_counts(pods, "pod-a", busy=1)
        return response

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
        """The sum of a metric's samples with these labels."""
        return metric(self.client.get(f"{self.gateway.url}/metrics").text, name, **labels)

    def slots_used(self, pod: str) -> int:
        """Slots in use as Redis counts them; -1 for an unknown pod."""

        async def read(registry: Registry) -> int:
            await registry.transactions.submit("sync")
            _, _, snapshot = await registry.transactions.snapshot()
            return next((int(entry[6]) for entry in snapshot.pods if entry[0] == pod), -1)

        return self.run(read)

    def wait_queued(self, count: int) -> None:
        """Wait until this number of requests is in the gateway's queue."""
        servers.wait_until(
            lambda: self.metric("pilotlight_gateway_waiting_requests") == count,
            what=f"{count} requests queued",
        )

    def wait_idle(self, pods: PodProcess) -> None:
        """Wait until nothing is reserved and no pod is busy, by its own and by Redis' count."""

        def is_idle() -> bool:
            return (
                pods.total("busy") == 0
                and self.metric("pilotlight_gateway_reservations") == 0
                and all(self.slots_used(pod) <= 0 for pod in pods.ports)
            )

        servers.wait_until(is_idle, what="pods idle")


@contextlib.contextmanager
def running_harness(
    folder: Path, redis_url: str, pool: str, client: httpx.Client, **settings: Any
) -> Iterator[GatewayHarness]:
    """A gateway with its log in `folder`; pods that are started end with it."""
    with ExitStack() as stack:
        gateway = stack.enter_context(
            servers.gateway(folder, redis_url=redis_url, pool=pool, **settings)
        )
        started = GatewayHarness(redis_url, pool, gateway, client, stack)
        yield started
        started.threads.shutdown(cancel_futures=True)


@contextlib.contextmanager
def running_pods(
    *names: str, redis_url: str, pool: str, client: httpx.Client, **options: Any
) -> Iterator[PodProcess]:
    """Pods in one process, registered; they end with the context."""
    with servers.running(
        "tests.gateway.pod_program",
        stdout=subprocess.PIPE,
        redis_url=redis_url,
        pool=pool,
        names=",".join(names),
        **options,
    ) as process:
        assert process.stdout is not None
        yield PodProcess(process, json.loads(process.stdout.readline())["ports"], client)


def wait_counts(pods: PodProcess, pod: str, **counts: int) -> None:
    """Wait until the pod's counters have these values."""
    servers.wait_until(lambda: counts.items() <= pods.counts(pod).items(), what=f"{pod}: {counts}")


def _dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def metric(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels, in Prometheus' text format."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.partition("{")[0].partition(" ")[0] == name and all(w in line for w in wanted)
    )


def exchange_bytes(port: int, data: bytes, *, timeout_s: float = 60.0) -> bytes:
    """Send raw bytes to a server; returns one response, or all bytes until the connection ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(data)
        return read_response(connection)


def read_response(connection: socket.socket) -> bytes:
    """One response with a declared length, or all bytes until the connection ends."""
    received = b""
    while True:
        head, found, body = received.partition(b"\r\n\r\n")
        if found and b"content-length: " in head.lower():
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            if len(body) >= length:
                break
        chunk = connection.recv(65536)
        if not chunk:
            break
        received += chunk
    return received
