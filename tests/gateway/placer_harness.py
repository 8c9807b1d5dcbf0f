"""A live placer in the test's own process, with a real Redis."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec

from gateway.dispatch.placer import Placer
from gateway.dispatch.reservations import Placement, Reservations
from gateway.request_task import LoopTimers
from gateway.routing.route_request import IncomingRequest
from gateway.telemetry.explanations import Explanations
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Tier
from registry.domain.pod import PodInfo
from registry.domain.pod_state import Granted, LoadMode, ReservationRequest
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests.servers import RedisServer

P = ParamSpec("P")


@dataclass
class PlacerHarness:
    """A placer with the registry, cluster state and reservations that it works on."""

    registry: Registry
    watch: ClusterWatch
    reservations: Reservations
    placer: Placer[Placement]
    sequence: itertools.count[int] = field(default_factory=itertools.count)

    async def register_pod(
        self, name: str, *, slots: int = 1, warm: ModelSpec | None = None
    ) -> int:
        """Register a pod; returns its epoch."""
        info = PodInfo(name, "127.0.0.1:1", name, slots=slots)
        epoch = await self.registry.register_pod(info, lease_ttl_s=60)
        if warm is not None:
            await self.registry.set_tier(name, epoch, warm.key, Tier.DEVICE, 1)
        return epoch

    async def declare(self, name: str, *, namespace: str = "default", **policy: Any) -> ModelSpec:
        spec = ModelSpec(ModelName(namespace, name), "file:///m", policy=ModelPolicy(**policy))
        await self.registry.put_models([spec])
        return spec

    def place(
        self, spec: ModelSpec, *, deadline_in_s: float | None = None
    ) -> asyncio.Task[Placement]:
        """Place a new request."""
        now_s = self.watch.registry_now_s()
        number = next(self.sequence)
        request = IncomingRequest(
            f"r{number}",
            spec.name,
            now_s,
            0.0,
            number,
            deadline_s=None if deadline_in_s is None else now_s + deadline_in_s,
        )
        return asyncio.create_task(Placement(request).place(self.placer))

    def release(self, placement: Placement) -> None:
        """End a placed request."""
        self.placer.release(placement)

    async def reserve_elsewhere(self, spec: ModelSpec, pod: str) -> str:
        """Reserve a slot as another gateway would; returns the reservation's id."""
        id_ = f"other:{next(self.sequence)}"
        terms = ReservationRequest(pod, pod, spec.key, LoadMode.WARM)
        reply = asyncio.get_running_loop().create_future()
        self.registry.reserve(id_, terms, reply.set_result)
        assert isinstance(await reply, Granted)
        return id_

    async def wait_queued(self, count: int) -> None:
        await eventually(lambda: self.placer.queued_total == count)

    async def slots_used(self, pod: str) -> int:
        """Slots in use as Redis counts them."""
        _, _, snapshot = await self.registry.transactions.snapshot()
        return next(int(entry[6]) for entry in snapshot.pods if entry[0] == pod)

    async def wait_slots_used(self, pod: str, slots: int) -> None:
        async with asyncio.timeout(60):
            while await self.slots_used(pod) != slots:
                pass


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running_placer(url: str, pool: str, gateway: str = "g") -> AsyncIterator[PlacerHarness]:
    registry = await Registry.connect(url, pool)
    watch = ClusterWatch(registry)
    reservations = Reservations(registry, watch.state, gateway)
    placer = Placer(
        watch.state, reservations, LoopTimers(), watch.registry_now_s, Explanations().record
    )
    watch.subscribe(placer.notify_change)
    runs = (watch.run, reservations.register_periodically)
    tasks = [asyncio.create_task(run()) for run in runs]
    await watch.wait_synced()
    try:
        yield PlacerHarness(registry, watch, reservations, placer)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await registry.close()


def with_placer(
    test: Callable[Concatenate[PlacerHarness, P], Coroutine[Any, Any, None]],
) -> Callable[..., None]:
    """Run a test with a placer in its own pool, as the test's first argument."""
    _, *parameters = inspect.signature(test).parameters.values()

    def run(redis: RedisServer, pool: str, *args: P.args, **kwargs: P.kwargs) -> None:
        async def inside() -> None:
            async with running_placer(redis.url, pool) as harness, asyncio.timeout(120):
                await test(harness, *args, **kwargs)

        asyncio.run(inside())

    fixtures = list(inspect.signature(run).parameters.values())[:2]
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__signature__ = inspect.Signature(fixtures + parameters)  # type: ignore[attr-defined]
    return run
