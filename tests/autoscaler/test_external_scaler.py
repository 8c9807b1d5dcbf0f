"""KEDA's external scaler, by a client of its protocol: figures, pushes, mistakes, faults."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from autoscaler.external_scaler import SERVICE, ExternalScaler, messages
from common.grpc.frames import frame, literal
from common.grpc.server import HEALTH, serving
from registry.domain.demand import ExpectedRates, QueueStats
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy
from registry.domain.pool_demand import REQUESTS_PER_S, WANTED_PODS, PoolAdvice
from registry.redis.client import Registry
from registry.redis.reports import ArrivalLog, AutoscalerLog
from registry.redis.watch import ClusterWatch
from tests import servers
from tests.gateway.grpc import calls
from tests.gateway.grpc.test_attacks import DATA, HEADERS, PING, PREFACE, RESET, Frames
from tests.registry.redis.clients import running
from tests.servers import wait_until

pytestmark = pytest.mark.slow

POOL = {"pool": "default"}
SLEEPER = ModelSpec(
    ModelName("team", "sleeper"),
    "s3://models/sleeper",
    policy=ModelPolicy(routing=RoutingPolicy.COLOCATION_QUEUEING, queue_timeout_s=1.0),
)


def reference(metadata: dict[str, str], namespace: str = "team") -> Any:
    return messages.ScaledObjectRef(name="so", namespace=namespace, scalerMetadata=metadata)


@dataclass
class Scaler:
    """An autoscaler's port, as KEDA calls it."""

    port: int

    def _send(self, method: str, message: Any, kind: str) -> Any:
        content = message.SerializeToString()
        answer = calls.send(self.port, f"/{SERVICE}/{method}", content)[0]
        return getattr(messages, kind).FromString(answer)

    def is_active(self, metadata: dict[str, str] = POOL) -> bool:
        found = self._send("IsActive", reference(metadata), "IsActiveResponse")
        return bool(found.result)

    def spec(self, metadata: dict[str, str] = POOL) -> tuple[str, float]:
        [found] = self._send(
            "GetMetricSpec", reference(metadata), "GetMetricSpecResponse"
        ).metricSpecs
        return found.metricName, found.targetSizeFloat

    def value(self, metadata: dict[str, str] = POOL, metric: str = WANTED_PODS) -> float:
        request = messages.GetMetricsRequest(scaledObjectRef=reference(metadata), metricName=metric)
        [found] = self._send("GetMetrics", request, "GetMetricsResponse").metricValues
        assert found.metricName == metric
        return float(found.metricValueFloat)

    def error(self, method: str, message: Any) -> Any:
        return calls.refused(self.port, f"/{SERVICE}/{method}", message.SerializeToString())


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.RedisServer]:
    """One that the last test stops."""
    with servers.redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


def act(redis: servers.RedisServer, do: Callable[[Registry], Awaitable[object]]) -> None:
    async def run() -> None:
        registry = await Registry.connect(redis.url, "default")
        await do(registry)
        await registry.close()

    asyncio.run(run())


@pytest.fixture(scope="module")
def scalers(redis: servers.RedisServer) -> Iterator[list[Scaler]]:
    """Two autoscalers of one pool, of which one leads."""
    act(redis, lambda registry: registry.put_models([SLEEPER]))
    ports = [servers.free_port(), servers.free_port()]
    options: dict[str, Any] = {
        "redis_url": redis.url, "min_pods": 0, "max_pods": 3, "pod_idle": 0.2, "pod_stable": 0.2,
    }  # fmt: skip
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(servers.running("autoscaler", scaler_port=port, **options))
        wait_until(lambda: all(map(is_serving, ports)), what="both answer")
        yield [Scaler(port) for port in ports]


def is_serving(port: int) -> bool:
    try:
        content = HealthCheckRequest(service=SERVICE).SerializeToString()
        answer = calls.send(port, HEALTH.decode(), content)[0]
    except grpc.RpcError:
        return False
    return bool(HealthCheckResponse.FromString(answer).status == HealthCheckResponse.SERVING)


def has_figures(scaler: Scaler) -> bool:
    try:
        scaler.value()
    except grpc.RpcError:
        return False
    return True


def report(redis: servers.RedisServer, waiting: int) -> None:
    queued = {SLEEPER.name: QueueStats(waiting, 0, 0.0)} if waiting else {}
    number = time.monotonic_ns()
    act(redis, lambda registry: ArrivalLog(registry).report("gateway", number, [], queued))


def test_every_autoscaler_answers_with_the_leaders_figures(
    redis: servers.RedisServer, scalers: list[Scaler]
) -> None:
    wait_until(lambda: all(map(has_figures, scalers)), what="figures")
    assert [each.spec() for each in scalers] == [(WANTED_PODS, 1.0)] * 2
    wait_until(lambda: scalers[0].value() == 0, what="no pods are wanted")
    assert [each.is_active() for each in scalers] == [False, False]
    report(redis, waiting=1)
    assert [each.is_active() for each in scalers] == [True, True]
    assert [each.value() for each in scalers] == [1.0, 1.0]
    report(redis, waiting=0)


def test_the_first_waiting_request_is_pushed_while_it_waits(
    redis: servers.RedisServer, scalers: list[Scaler], tmp_path: Path
) -> None:
    heard: list[bool] = []

    def listen(channel: grpc.Channel) -> None:
        stream = channel.unary_stream(f"/{SERVICE}/StreamIsActive")
        with suppress(grpc.RpcError):  # at the end
            answers = stream(reference(POOL).SerializeToString())
            heard.extend(messages.IsActiveResponse.FromString(each).result for each in answers)

    with (
        servers.gateway(tmp_path, redis_url=redis.url) as gateway,
        calls.channel(scalers[1].port) as channel,
        ThreadPoolExecutor(1) as client,
        httpx.Client(trust_env=False, timeout=60) as http,
    ):
        wait_until(lambda: has_figures(scalers[1]), what="figures")
        threading.Thread(target=listen, args=[channel], daemon=True).start()
        url = f"{gateway.url}/serving/team/sleeper/v1/models/sleeper:predict"
        wait_until(lambda: heard and not heard[-1], what="the pool is idle")
        response = client.submit(http.post, url, json={"instances": [1]})
        wait_until(lambda: heard[-1], what="the push")
        assert not response.done()
        assert response.result().status_code == 504  # no pod came in time


def test_another_leader_goes_on_with_the_figures(
    redis: servers.RedisServer, scalers: list[Scaler]
) -> None:
    async def depose(registry: Registry) -> None:
        log = AutoscalerLog(registry)
        records = await log.records()
        assert records.leader is not None
        await log.release_lead(records.leader.token)
        token = await log.acquire_lead("another", ttl_s=60)
        assert token is not None
        await log.advise(token, PoolAdvice(2, at_s=records.read_at_s))
        assert not await log.advise(records.leader.token, PoolAdvice(3))
        assert [each.value() for each in scalers] == [2.0, 2.0]
        await log.advise(token, PoolAdvice(2, at_s=records.read_at_s - 20))
        error = scalers[0].error("IsActive", reference(POOL))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "in the last 15 s" in error.details()
        await registry.transactions.submit("advise", token, "[]")  # of another version
        assert scalers[0].error("IsActive", reference(POOL)).code() is grpc.StatusCode.UNAVAILABLE
        await log.release_lead(token)

    wait_until(lambda: all(map(has_figures, scalers)), what="figures")
    act(redis, depose)
    wait_until(lambda: has_figures(scalers[0]), what="one of them leads again")


def test_the_transformer_of_a_model_has_its_forecast(
    redis: servers.RedisServer, scalers: list[Scaler]
) -> None:
    async def publish(registry: Registry) -> None:
        log = AutoscalerLog(registry)
        leader = (await log.records()).leader
        assert leader is not None
        rates = ExpectedRates({SLEEPER.key: 12.0}, time.time())
        await log.publish_expected_rates(leader.token, rates)

    metadata = {"deployment": "sleeper-transformer", "requestsPerSecond": "4.5"}
    wait_until(lambda: has_figures(scalers[0]), what="figures")
    act(redis, publish)
    assert scalers[0].spec(metadata) == (REQUESTS_PER_S, 4.5)
    assert scalers[0].value(metadata, REQUESTS_PER_S) == 12.0
    assert scalers[0].is_active(metadata)


@pytest.mark.parametrize(
    ("method", "metadata", "text"),
    [
        ("IsActive", {}, "metadata must have pool: default, the one of this autoscaler, or"),
        ("IsActive", {"pool": "gpu"}, "has pool: gpu"),
        ("IsActive", {"pool": "default", "deployment": "x"}, "has deployment: x, pool: default"),
        ("StreamIsActive", {"deployment": "web"}, "was team/web"),
        ("StreamIsActive", {"pool": "gpu"}, "has pool: gpu"),
        ("GetMetricSpec", {"deployment": "sleeper-transformer"}, "requestsPerSecond must be a"),
        (
            "GetMetricSpec",
            {"deployment": "sleeper-explainer", "requestsPerSecond": "-1"},
            "from 0.001",
        ),
        (
            "GetMetricSpec",  # more than its field holds
            {"deployment": "sleeper-explainer", "requestsPerSecond": "1e300"},
            "to 1e+09",
        ),
        (
            "GetMetricSpec",  # nothing in thousandths
            {"deployment": "sleeper-explainer", "requestsPerSecond": "1e-9"},
            "from 0.001",
        ),
        ("IsActive", {"deployment": "unknown-transformer"}, "NAME-transformer or NAME-explainer"),
    ],
)
def test_mistakes_are_invalid_arguments(
    scalers: list[Scaler], method: str, metadata: dict[str, str], text: str
) -> None:
    wait_until(lambda: has_figures(scalers[0]), what="figures")
    if method == "StreamIsActive":
        with calls.channel(scalers[0].port) as channel:
            stream = channel.unary_stream(f"/{SERVICE}/{method}")
            with pytest.raises(grpc.RpcError) as caught:
                list(stream(reference(metadata).SerializeToString(), timeout=60))
        error: Any = caught.value
    else:
        error = scalers[0].error(method, reference(metadata))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in error.details()


def test_an_unreadable_message_and_a_wrong_metric(scalers: list[Scaler]) -> None:
    error: Any = calls.refused(scalers[0].port, f"/{SERVICE}/IsActive", b"\xff")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    wait_until(lambda: has_figures(scalers[0]), what="figures")
    request = messages.GetMetricsRequest(scaledObjectRef=reference(POOL), metricName="cpu")
    error = scalers[0].error("GetMetrics", request)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert WANTED_PODS in error.details()


async def test_a_call_has_one_answer_and_leaves_nothing_behind(redis: servers.RedisServer) -> None:
    port, content = servers.free_port(), reference(POOL).SerializeToString()
    message = b"\0" + len(content).to_bytes(4, "big") + content

    def begin(number: int, method: str, end: int) -> bytes:
        path = literal(b":path", f"/{SERVICE}/{method}".encode())
        head = frame(HEADERS, 4, number, b"\x83\x86" + path)
        return head + frame(DATA, 0, number, message * 100) + frame(DATA, end, number, b"")

    def call() -> None:
        reset = begin(1, "StreamIsActive", 1) + frame(RESET, 0, 1, bytes(4))
        client = Frames(port, PREFACE + reset + begin(3, "IsActive", 0))
        client.send(frame(PING, 0, 0, bytes(8)))
        assert client.read(PING)
        client.close()

    registry = await Registry.connect(redis.url, "calls")
    async with running(ClusterWatch(registry)) as watch, asyncio.TaskGroup() as group:
        started: list[asyncio.Task[Any]] = []
        scaler = ExternalScaler("default", watch, group)

        def start(answer: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            started.append(group.create_task(answer))
            return started[-1]

        scaler.start = start  # type: ignore[assignment]
        async with serving(
            scaler.calls(), {}, host="127.0.0.1", port=port, max_message_bytes=1000, drain_s=1
        ):
            await asyncio.to_thread(call)
        await asyncio.gather(*started)
        assert len(started) == 1  # of the stream, whose client was gone by then
        assert not scaler.streams
    await registry.close()


def test_figures_are_kept_for_an_outage_of_redis(
    redis: servers.RedisServer, scalers: list[Scaler]
) -> None:
    wait_until(lambda: has_figures(scalers[0]), what="figures")
    before = scalers[0].value()
    redis.stop()
    try:
        assert scalers[0].value() == before
    finally:
        redis.start()
