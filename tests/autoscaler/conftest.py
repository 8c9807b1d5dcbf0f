"""A real Redis, autoscalers in this process, and pods with the model repository extension."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from autoscaler.act import ActionExecutor, Actuator, RegistryActuator
from autoscaler.forecast import DemandForecaster
from autoscaler.forecasting.forecasts import Demand, FittedModel, forecast_demand
from autoscaler.forecasting.history import History
from autoscaler.loop import Autoscaler
from autoscaler.metrics import AutoscalerMetrics
from autoscaler.policy import LoadingPolicy
from autoscaler.settings import AutoscalerSettings
from common.pod_client import PodClient
from common.pod_secret import PodSecret
from registry.domain.model import LoadFailure, ModelName, ModelPolicy, ModelSpec, Tier
from registry.domain.pod import PodInfo, PodReport
from registry.domain.pod_state import ANY_COPIES
from registry.errors import RegistryError
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from registry.redis.watch import ClusterWatch
from tests import servers

ForecastFunction = Callable[[History, FittedModel], Demand]

_pools = itertools.count(1)
_holders = itertools.count(1)


def model(name: str, **policy: Any) -> ModelSpec:
    return ModelSpec(
        ModelName("default", name), f"s3://models/{name}", policy=ModelPolicy(**policy)
    )


@dataclass
class Pod:
    """A pod that registers and serves loads over HTTP."""

    registry: Registry
    name: str
    address: str = ""
    epoch: int = 0
    refuses: bool = False
    fails: set[str] = field(default_factory=set)
    """Models whose load always fails."""
    refuses_claims: bool = False
    """As where the registry refuses the claim of each load."""
    slots: int = 1
    memory_bytes: int = 10**9
    may_claim: asyncio.Event | None = None
    """Loads are claimed once it is set, as by a busy pod."""
    claiming: int = 0
    """Loads asked for and not claimed yet."""
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """Loads end once it is set."""
    loads: list[str] = field(default_factory=list)
    """Calls of `load`, by model."""
    unloads: list[str] = field(default_factory=list)

    async def serve(self) -> asyncio.Server:
        """Listen and register."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        await self.register()
        return server

    async def register(self) -> None:
        """Register without any model."""
        info = PodInfo(
            self.name,
            self.address,
            node=self.name,
            slots=self.slots,
            memory_bytes=self.memory_bytes,
        )
        self.epoch = await self.registry.register_pod(info, lease_ttl_s=600)

    async def beat(self, report: PodReport | None = None) -> None:
        await self.registry.heartbeat(self.name, self.epoch, report or PodReport(), lease_ttl_s=600)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                document = json.loads(await reader.readexactly(length))
                path = head.split(b" ", 2)[1].decode()
                status, extra = await self._do(path, document)
                body = b"{}"
                writer.write(
                    f"HTTP/1.1 {status} -\r\n{extra}content-length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _do(self, path: str, document: dict[str, Any]) -> tuple[int, str]:
        *_, segment, verb = path.split("/")
        spec = model(ModelName.from_path_segment(segment).name)
        if self.refuses:
            return 503, "x-pilotlight-not-executed: draining\r\n"
        if self.refuses_claims:
            self.loads.append(spec.name.name)
            return 503, "x-pilotlight-not-executed: load-refused\r\n"
        try:
            if verb == "unload":
                self.unloads.append(spec.name.name)
                await self.registry.set_tier(self.name, self.epoch, spec.key, Tier.DISK, 100)
                return 200, ""
            self.loads.append(spec.name.name)
            copies = document.get("parameters", {}).get("max_other_copies", ANY_COPIES)
            return (await self._load(spec, copies)), ""
        except RegistryError:
            return 503, ""

    async def _load(self, spec: ModelSpec, max_other_copies: int) -> int:
        self.claiming += 1
        if self.may_claim is not None:
            await self.may_claim.wait()
        token = await self.registry.claim_load(self.name, self.epoch, spec.key, max_other_copies)
        self.claiming -= 1
        if token is None:
            return 200
        await self.registry.start_load(self.name, self.epoch, spec.key, token, Tier.REMOTE)
        if spec.name.name in self.fails:
            failure = LoadFailure(spec.key, "ModelLoadFailed", "broken", 1, 0.0)
            await self.registry.fail_load(self.name, self.epoch, spec.key, token, failure)
            return 503
        await self.hold.wait()
        await self.registry.finish_load(self.name, self.epoch, spec.key, token, 100)
        return 200


@dataclass
class Stage:
    """A pool with pods and autoscalers that a test starts."""

    url: str
    pool: str
    registry: Registry
    stack: contextlib.AsyncExitStack

    async def pod(self, name: str, *, holds: bool = False, **options: Any) -> Pod:
        """A pod that accepts loads; with `holds` they finish once its `hold` is set."""
        pod = Pod(self.registry, name, **options)
        if not holds:
            pod.hold.set()
        server = await pod.serve()
        self.stack.callback(server.close)
        return pod

    @contextlib.asynccontextmanager
    async def autoscaler(
        self,
        policy: LoadingPolicy[Any],
        *,
        forecast: ForecastFunction = forecast_demand,
        actuator: Actuator | None = None,
        lease_s: float = 1.0,
        **settings: Any,
    ) -> AsyncIterator[AutoscalerMetrics]:
        """A running autoscaler; at the end it is killed without releasing its lead."""
        registry = Registry(self.url, self.pool)
        watch, scaling = ClusterWatch(registry), AutoscalerLog(registry)
        chosen = replace(AutoscalerSettings(redis_url=self.url, pool=self.pool), **settings)
        metrics = AutoscalerMetrics()
        holder = f"autoscaler-{next(_holders)}"
        forecaster = DemandForecaster(forecast)
        chosen_actuator = actuator or RegistryActuator(chosen)
        one = Autoscaler(
            chosen,
            watch,
            scaling,
            policy,
            metrics,
            holder,
            forecaster,
            chosen_actuator,
            tick_s=0.05,
            lease_s=lease_s,
            forecast_every_s=0.05,
        )
        client = PodClient(PodSecret(), timeout_s=120)

        async def run() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(watch.run())
                executor = ActionExecutor(
                    group,
                    scaling,
                    client,
                    metrics,
                    chosen_actuator,
                    state=lambda: watch.state,
                    now_s=watch.registry_now_s,
                    pace=chosen.pace,
                )
                group.create_task(one.run(executor))

        task = asyncio.create_task(run())
        try:
            yield metrics
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            client.close()
            await registry.close()


@contextlib.asynccontextmanager
async def a_stage(url: str) -> AsyncIterator[Stage]:
    """A stage with its own pool."""
    pool = f"autoscaler-{next(_pools)}"
    registry = await Registry.connect(url, pool)
    async with contextlib.AsyncExitStack() as stack:
        yield Stage(url, pool, registry, stack)
    await registry.close()


@pytest.fixture
async def stage(redis: servers.RedisServer) -> AsyncIterator[Stage]:
    async with a_stage(redis.url) as made:
        yield made


def metric(metrics: AutoscalerMetrics, name: str, **labels: str) -> float:
    """One sample; 0 if it does not exist."""
    return metrics.registry.get_sample_value(name, labels) or 0.0
