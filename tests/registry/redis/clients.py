"""Registry clients in tests: pods that load, requests that reserve, watches that follow."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from registry.domain.model import LoadFailure, ModelName, ModelRecord, ModelSpec, Tier
from registry.domain.pod import PodInfo, PodReport
from registry.domain.pod_state import ANY_COPIES, Granted, LoadMode, Refusal, ReservationRequest
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests.registry.comparable_state import comparable
from tests.registry.redis.timeouts import long_timeouts

SPEC = ModelSpec(ModelName("default", "translate"), "s3://models/one")
KEY = SPEC.key
Result = TypeVar("Result")
_ids = itertools.count(1)


def act(redis_url: str, pool: str, action: Callable[[Registry], Awaitable[Result]]) -> Result:
    """Run an action against the registry from outside any event loop, with its own client."""

    async def run() -> Result:
        registry = await Registry.connect(redis_url, pool)
        try:
            return await action(registry)
        finally:
            await registry.close()

    with long_timeouts():
        return asyncio.run(run())


async def eventually(
    condition: Callable[[], Awaitable[object]], *, timeout_s: float = 60.0, what: str = "condition"
) -> None:
    """Return once the condition holds."""
    deadline_s = time.monotonic() + timeout_s
    while not await condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} not met within {timeout_s} s")
        await asyncio.sleep(0.01)


async def until(
    condition: Callable[[], object], *, timeout_s: float = 60.0, what: str = "condition"
) -> None:
    """Return once the condition holds."""

    async def check() -> object:
        return condition()

    await eventually(check, timeout_s=timeout_s, what=what)


@dataclass
class Pod:
    """A pod as a registry client."""

    registry: Registry
    name: str
    epoch: int
    lease_ttl_s: float

    @classmethod
    async def join(
        cls,
        registry: Registry,
        name: str,
        *,
        slots: int = 1,
        lease_ttl_s: float = 60.0,
        uid: str = "",
    ) -> Pod:
        info = PodInfo(name, "127.0.0.1:1", node=name, slots=slots, memory_bytes=1000, uid=uid)
        epoch = await registry.register_pod(info, lease_ttl_s=lease_ttl_s)
        return cls(registry, name, epoch, lease_ttl_s)

    @classmethod
    async def join_warm(
        cls, registry: Registry, name: str, *, slots: int = 1, lease_ttl_s: float = 60.0
    ) -> Pod:
        """Register a pod that holds the model of `KEY`."""
        pod = await cls.join(registry, name, slots=slots, lease_ttl_s=lease_ttl_s)
        await pod.load()
        return pod

    async def heartbeat(self, report: PodReport | None = None) -> None:
        await self.registry.heartbeat(
            self.name, self.epoch, report or PodReport(), lease_ttl_s=self.lease_ttl_s
        )

    async def claim(
        self, key: str = KEY, max_other_copies: int = ANY_COPIES, *, ttl_s: float = 60.0
    ) -> int | None:
        return await self.registry.claim_load(
            self.name, self.epoch, key, max_other_copies, ttl_s=ttl_s
        )

    async def claim_token(self, key: str = KEY, *, ttl_s: float = 60.0) -> int:
        """Claim a load that must be granted."""
        token = await self.claim(key, ttl_s=ttl_s)
        assert token is not None
        return token

    async def start(self, token: int, key: str = KEY, source: Tier = Tier.REMOTE) -> None:
        await self.registry.start_load(self.name, self.epoch, key, token, source)

    async def finish(self, token: int, key: str = KEY) -> None:
        await self.registry.finish_load(self.name, self.epoch, key, token, 10)

    async def load(self, key: str = KEY) -> int:
        """Claim, start and finish a load."""
        token = await self.claim_token(key)
        await self.start(token, key)
        await self.finish(token, key)
        return token

    async def set_tier(self, tier: Tier, key: str = KEY, *, bytes_: int = 10) -> None:
        await self.registry.set_tier(self.name, self.epoch, key, tier, bytes_)

    async def leave(self) -> None:
        await self.registry.deregister_pod(self.name, self.epoch)

    async def lapse(self) -> None:
        """Send no more heartbeats; return once the lease has expired."""
        self.lease_ttl_s = 0.05
        await self.heartbeat()
        await eventually(self._is_gone, what=f"end of the lease of {self.name}")

    async def _is_gone(self) -> bool:
        return await reserve(self.registry, self.name, mode=LoadMode.LOAD) is Refusal.GONE


async def reserve(
    registry: Registry,
    entry: str,
    predict: str = "",
    *,
    key: str = KEY,
    mode: LoadMode = LoadMode.WARM,
    max_other_copies: int = -1,
    target_ongoing: int = 0,
    ttl_s: float = 60.0,
    id_: str = "",
    takes_slot: bool = True,
) -> Granted | Refusal:
    """Reserve a slot at `entry` and a place at `predict`, by default the same pod."""
    future: asyncio.Future[Granted | Refusal] = asyncio.get_running_loop().create_future()

    def settle(result: Granted | Refusal | RegistryUnavailable) -> None:
        if isinstance(result, RegistryUnavailable):
            future.set_exception(result)
        else:
            future.set_result(result)

    wanted = ReservationRequest(
        entry=entry,
        predict=predict or entry,
        key=key,
        mode=mode,
        max_other_copies=max_other_copies,
        target_ongoing=target_ongoing,
        ttl_s=ttl_s,
        takes_slot=takes_slot,
    )
    registry.reserve(id_ or f"r{next(_ids)}", wanted, settle)
    return await future


def terms(entry: str, predict: str = "", *, ttl_s: float = 60.0) -> ReservationRequest:
    """Those of a reservation made before."""
    return ReservationRequest(entry, predict or entry, KEY, LoadMode.WARM, ttl_s=ttl_s)


async def release(registry: Registry, id_: str, entry: str, predict: str = "") -> None:
    """Release a reservation and wait for the result."""
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    registry.release(id_, terms(entry, predict), future.set_result)
    result = await future
    if isinstance(result, RegistryUnavailable):
        raise result


def failure(key: str = KEY) -> LoadFailure:
    return LoadFailure(key, "ModelLoadFailed", "no such bucket", attempts=1, retry_at_s=1.5)


async def record_of(registry: Registry, name: ModelName = SPEC.name) -> ModelRecord:
    record = await registry.get_model(name)
    assert record is not None
    return record


async def counts(registry: Registry, pod: str) -> tuple[int, int]:
    """Slots taken and requests in their inference stage, in Redis."""
    state = (await registry.cluster()).pods[pod]
    return state.slots_used, state.ongoing


@contextlib.asynccontextmanager
async def running(watch: ClusterWatch) -> AsyncIterator[ClusterWatch]:
    """The watch, synced; its task ends with the block."""
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(60):
            await watch.wait_synced()
        yield watch
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def agrees(watch: ClusterWatch, registry: Registry) -> bool:
    return comparable(watch.state) == comparable(await registry.cluster())
