"""A running platform for live experiments: puts models in a known state and times requests."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from common.backoff import Backoff
from load.generator.records import reported_stages_ms
from pilotlight.demo.runs import TimedResponse
from pilotlight.errors import PilotlightError, RequestFailed
from pilotlight.platform.platform import Platform
from pilotlight.platform.settings import PlatformSettings
from pilotlight.signals import cancelled_by_signals
from registry.domain.model import ModelSpec

_REQUEST_TIMEOUT_S = 300.0
_SETTLE_TIMEOUT_S = 30.0
_POLL_INTERVAL = Backoff(0.001, 0.1)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LiveSession:
    """A running platform and a plain HTTP client of its gateway."""

    platform: Platform
    client: httpx.AsyncClient

    async def create_models(self, specs: Sequence[ModelSpec]) -> None:
        """Register models and wait until the gateway, which follows the registry, serves them."""
        await self.platform.cluster.registry.put_models(specs)
        async with asyncio.timeout(_SETTLE_TIMEOUT_S):
            for spec in specs:
                for attempt in itertools.count(1):
                    if (await self.client.get(f"/v2/models/{spec.name.name}")).is_success:
                        break
                    await asyncio.sleep(_POLL_INTERVAL.pause_s(attempt))

    async def make_cold(self, spec: ModelSpec) -> None:
        """Delete a model, wait until no pod holds it in any tier, create it again."""
        cluster = self.platform.cluster
        await cluster.registry.delete_models([spec.name])
        await cluster.wait_until(
            lambda: not cluster.state.holders(spec.key),
            timeout_s=_SETTLE_TIMEOUT_S,
            what=f"no pod holds {spec.name}",
        )
        await self.create_models([spec])

    async def wait_idle(self) -> None:
        """Wait until no slot is reserved; a slot is released shortly after its response is sent."""
        cluster = self.platform.cluster
        await cluster.wait_until(
            lambda: not any(pod.slots_used for pod in cluster.state.pods.values()),
            timeout_s=_SETTLE_TIMEOUT_S,
            what="all slots free",
        )

    async def predict(
        self, spec: ModelSpec, text: str, headers: Mapping[str, str] | None = None
    ) -> TimedResponse:
        """Send one text to a model of the namespace `default`, by protocol V1."""
        path = f"/v1/models/{spec.name.name}:predict"
        return await self.request(path, {"instances": [text]}, headers)

    async def request(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> TimedResponse:
        """POST a JSON body; raises RequestFailed for any status but success."""
        started_s = time.perf_counter()
        response = await self.client.post(path, json=body, headers=dict(headers or {}))
        latency_s = time.perf_counter() - started_s
        if not response.is_success:
            raise RequestFailed(f"{path}: HTTP {response.status_code}: {response.text[:300]}")
        found = response.headers
        pod = found.get("x-pilotlight-pod", "")
        stages_ms = reported_stages_ms(found.get("server-timing", ""))
        return TimedResponse(
            latency_s=latency_s,
            start=found.get("x-pilotlight-start", ""),
            pod=pod,
            predict_pod=found.get("x-pilotlight-predict-pod", pod),
            reason=found.get("x-pilotlight-reason", ""),
            request_id=found.get("x-request-id", ""),
            stages_s={stage: ms / 1000 for stage, ms in stages_ms.items()},
            body=response.json(),
        )


@asynccontextmanager
async def live_session(
    settings: PlatformSettings, on_progress: Callable[[int, int, str], None] | None = None
) -> AsyncIterator[LiveSession]:
    """A platform that runs until the context ends or a signal arrives, which raises Interrupted."""
    async with (
        cancelled_by_signals(),
        Platform(settings, on_progress) as platform,
        httpx.AsyncClient(
            base_url=platform.gateway_url,
            trust_env=False,
            timeout=_REQUEST_TIMEOUT_S,
            limits=httpx.Limits(max_connections=None),
        ) as client,
    ):
        yield LiveSession(platform, client)


async def gather_requests(*requests: Coroutine[Any, Any, T]) -> list[T]:
    """The results of concurrent requests; the first failure cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except* PilotlightError as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
