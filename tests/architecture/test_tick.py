"""How many files a tick that preloads a model visits: what its reader has to know."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from autoscaler.act import ActionExecutor, RegistryActuator
from autoscaler.loading_policies import policy_of
from autoscaler.loop import Autoscaler
from autoscaler.metrics import AutoscalerMetrics
from autoscaler.settings import AutoscalerSettings
from common.pod_client import PodClient
from common.pod_secret import PodSecret
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod import PodInfo
from registry.redis.client import Registry
from registry.redis.reports import ArrivalLog, AutoscalerLog
from registry.redis.watch import ClusterWatch
from tests.gateway.asynchronous import run_async
from tests.registry.redis.clients import running
from tests.servers import REPOSITORY, RedisServer

MOST_IN_AUTOSCALER: Final = 18
MOST_IN_ALL: Final = 40
ROUNDS: Final = 5
POOL: Final = "tick"
SPEC: Final = ModelSpec(ModelName("default", "m"), "s3://models/m")


async def serve_pod(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Every load is done at once, and nothing is reported: the next tick asks for it again."""
    while await reader.read(65536):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    writer.close()


@contextmanager
def recording(visits: list[set[str]]) -> Iterator[None]:
    """The files whose functions are called, in this thread and those that begin meanwhile."""

    def record(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(REPOSITORY):
            visits[-1].add(path.relative_to(REPOSITORY).as_posix())

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@run_async
async def test_a_tick_that_preloads_visits_no_more_files_than_recorded(redis: RedisServer) -> None:
    visits: list[set[str]] = []
    metrics = AutoscalerMetrics()
    settings = AutoscalerSettings(redis_url=redis.url, pool=POOL)
    actuator = RegistryActuator(settings)
    async with AsyncExitStack() as stack:
        pod = await asyncio.start_server(serve_pod, "127.0.0.1", 0)
        stack.callback(pod.close)
        host, port = pod.sockets[0].getsockname()
        info = PodInfo("pod-a", f"{host}:{port}", "node", slots=4, memory_bytes=10**10)
        registry = await Registry.connect(redis.url, POOL)
        stack.push_async_callback(registry.close)
        client = PodClient(PodSecret())
        stack.callback(client.close)
        await registry.register_pod(info, lease_ttl_s=600)
        await registry.put_models([SPEC])
        arrivals = [(SPEC.name, 5, ago_s) for ago_s in range(1, 50)]
        await ArrivalLog(registry).report("gateway", 1, arrivals, {})
        watch, log = ClusterWatch(registry), AutoscalerLog(registry)
        await stack.enter_async_context(running(watch))
        for _ in range(ROUNDS):
            # A new one, which reads all counts and fits its forecast.
            one = Autoscaler(settings, watch, log, policy_of("predictive"), metrics, "it")
            visits.append(set())
            with recording(visits):
                async with asyncio.TaskGroup() as group:
                    executor = ActionExecutor(
                        group,
                        log,
                        client,
                        metrics,
                        actuator,
                        state=lambda: watch.state,
                        now_s=watch.registry_now_s,
                    )
                    await one.tick(executor)
                    await one.wait_forecast()
                    await one.tick(executor)
            last = (await log.records()).history[0]
            assert (last.verb, last.reason, last.outcome) == ("load", "forecast", "done"), last
    # without what runs beside some of them
    visited = sorted(set.intersection(*visits))
    ours = [each for each in visited if each.startswith(("autoscaler/", "registry/", "common/"))]
    own = [each for each in ours if each.startswith("autoscaler/")]
    assert 5 < len(own) <= MOST_IN_AUTOSCALER, own
    assert len(ours) <= MOST_IN_ALL, ours
