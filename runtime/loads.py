"""Holding models on the device: one load per model at a time, different models side by side.

A request that needs a model holds it: it is there, or the request joins the load under way, or it
begins one under a claim of the registry. Failed loads are not tried again before their time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from registry.client import ClaimScope
from registry.errors import ClaimLost
from registry.model import ModelSpec, Tier
from runtime.agent import Agent, Claim
from runtime.errors import (
    DeadlinePassed,
    LoadFailed,
    LoadRefused,
    ModelBroken,
    RuntimePackageError,
)
from runtime.failures import Failures
from runtime.metrics import LOAD_SECONDS, LOADS

if TYPE_CHECKING:
    from registry.watch import ClusterWatch
    from runtime.bringing import Bringer, Loaded
    from runtime.measurements import Measurements
    from runtime.reload_costs import ReloadCosts
    from runtime.served_model import ServedModel
    from runtime.store import Resident

logger = logging.getLogger(__name__)

CLAIM_PATIENCE_S = 6.0
"""A refused claim is tried again this long: a gateway's unstarted claim is over after 5 s."""
CLAIM_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class HeldModel:
    """A model a request holds on the device; give it back with `Loads.release`."""

    resident: Resident
    start: str
    """`warm`, or the tier the request had to wait from."""
    load_s: float

    @property
    def model(self) -> ServedModel:
        """The model."""
        return self.resident.model


@dataclass(slots=True)
class _Load:
    """A load under way. Mutable: owned by the event loop."""

    spec: ModelSpec
    scope: ClaimScope
    done: asyncio.Future[Resident]
    token: int | None = None
    source: Tier = Tier.REMOTE
    waiters: int = 0
    is_settled: bool = False
    """Whether the registry heard how it ended."""
    begun_s: float = field(default_factory=time.monotonic)


class Loads:
    """All loads of a pod."""

    def __init__(
        self,
        bringer: Bringer,
        *,
        agent: Agent,
        watch: ClusterWatch,
        measurements: Measurements,
        costs: ReloadCosts,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._bringer = bringer
        self._costs = costs
        self._store = bringer.store
        self._agent = agent
        self._measurements = measurements
        self._tasks = tasks
        self._under_way: dict[str, _Load] = {}
        self._failures = Failures(watch)
        self.completed_total = 0

    def is_loading(self, key: str) -> bool:
        """Whether the model is on its way to the device."""
        return key in self._under_way

    async def hold(
        self, spec: ModelSpec, *, token: int | None = None, deadline_s: float | None = None
    ) -> HeldModel:
        """The model, on the device until released.

        Raises:
            LoadFailed: it cannot be loaded, or was tried too recently.
            LoadRefused: the registry gave no claim.
            MemoryBusy: models in use hold the memory.
            DeadlinePassed: the load takes longer than the request may wait.
        """
        resident = self._store.pin(spec.key)
        if resident is not None:
            return HeldModel(resident, "warm", 0.0)
        if (reason := self._store.broken_reason(spec.key)) is not None:
            raise ModelBroken(reason)  # it leaves the device; only then may it be loaded again
        load = self._under_way.get(spec.key) or self._begin(spec, ClaimScope.POD, token)
        if token is not None:
            load.token = max(token, load.token or 0)
        load.waiters += 1
        started_s = time.monotonic()
        try:
            remaining_s = None if deadline_s is None else deadline_s - started_s
            async with asyncio.timeout(remaining_s):
                resident = await asyncio.shield(load.done)
        except BaseException as error:
            await self._stop_waiting(load)
            if isinstance(error, TimeoutError):
                raise DeadlinePassed(f"the deadline passed while {spec.key} was loaded") from error
            raise
        return HeldModel(resident, load.source.value, time.monotonic() - started_s)

    async def release(self, held: HeldModel) -> None:
        """Give a held model back."""
        await self._store.unpin(held.resident)

    async def _stop_waiting(self, load: _Load) -> None:
        """A waiter leaves: the load pins the model once for each that is left when it is done."""
        if not load.done.done():
            load.waiters -= 1
        elif not load.done.cancelled() and load.done.exception() is None:
            await self._store.unpin(load.done.result())

    async def preload(self, spec: ModelSpec, scope: ClaimScope) -> None:
        """Bring a model to the device without holding it; raises as `hold` does."""
        if self._store.holds(spec.key):
            return
        load = self._under_way.get(spec.key) or self._begin(spec, scope, None)
        await asyncio.shield(load.done)

    async def give_up(self, key: str, reason: str) -> None:
        """Take a model that hangs off the device and say so; requests to it hear the reason."""
        failure = self._failures.remember_broken(key, reason)
        await self._store.retire(key, "broken")
        await self._agent.report_broken(failure)

    # One load

    def _begin(self, spec: ModelSpec, scope: ClaimScope, token: int | None) -> _Load:
        done: asyncio.Future[Resident] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_mark_retrieved)
        load = _Load(spec, scope, done, token)
        self._under_way[spec.key] = load
        self._tasks.create_task(self._run(load))
        return load

    async def _run(self, load: _Load) -> None:
        key = load.spec.key
        try:
            resident = await self._load(load)
        except asyncio.CancelledError:
            load.done.cancel()
            raise
        except RuntimePackageError as error:
            load.done.set_exception(error)
        else:
            self._store.pin(key, load.waiters)
            load.done.set_result(resident)
            await self._store.unpin(resident)
        finally:
            del self._under_way[key]
            if not load.is_settled:
                self._agent.tell_tier(key)  # which takes the claim back

    async def _load(self, load: _Load) -> Resident:
        """The model on the device, pinned once so that it is not evicted before it is used."""
        self._failures.check(load.spec)
        claim = Claim(None, 0)
        try:
            claim = await self._claim(load)
            claim = await self._start(load, claim)
            loaded = await self._bringer.bring(load.spec)
            load.source = loaded.source  # a nearer copy may have been spoiled, or have gone
        except LoadFailed as error:
            await self._remember_failure(load, claim, error)
            raise
        except LoadRefused:
            load.is_settled = True  # the claim is somebody else's
            raise
        except RuntimePackageError:
            LOADS.labels(tier=load.source.value, outcome="refused").inc()
            raise
        except Exception as error:
            logger.exception("load broke", extra={"key": load.spec.key})
            failure = LoadFailed(f"{load.spec.key} could not be loaded: {error!r}")
            await self._remember_failure(load, claim, failure)
            raise failure from error
        return await self._finish(load, claim, loaded)

    async def _claim(self, load: _Load) -> Claim:
        """The gateway's claim where it made one, else one of our own, with some patience."""
        give_up_s = time.monotonic() + CLAIM_PATIENCE_S
        while True:
            if load.token is not None:
                return self._agent.adopt(load.token)
            try:
                return await self._agent.claim(load.spec.key, load.scope)
            except LoadRefused:
                if load.scope is ClaimScope.POOL or time.monotonic() >= give_up_s:
                    raise
            await asyncio.sleep(CLAIM_PAUSE_S)

    async def _start(self, load: _Load, claim: Claim) -> Claim:
        key = load.spec.key
        load.source = await self._bringer.nearest_tier(key)
        try:
            await self._agent.start_load(key, self._newest(load, claim), load.source)
        except ClaimLost:  # the gateway's claim was over before we began
            load.token = None
            claim = await self._agent.claim(key, ClaimScope.POD)
            try:
                await self._agent.start_load(key, claim, load.source)
            except ClaimLost as error:
                raise LoadRefused(f"the load of {key} was given to somebody else") from error
        return claim

    async def _finish(self, load: _Load, claim: Claim, loaded: Loaded) -> Resident:
        key = load.spec.key
        resident = self._store.add(loaded.model, loaded.memory_bytes, loaded.release)
        self._store.pin(key)
        try:
            await self._agent.finish_load(key, self._newest(load, claim), loaded.memory_bytes)
        except ClaimLost as error:
            load.is_settled = True
            LOADS.labels(tier=load.source.value, outcome="fenced").inc()
            await self._store.retire(key, "claim-lost")
            await self._store.unpin(resident)
            raise LoadRefused(f"the load of {key} was given to somebody else") from error
        load.is_settled = True
        self._count_success(load, loaded.memory_bytes)
        return resident

    def _newest(self, load: _Load, claim: Claim) -> Claim:
        """A joiner may have brought a newer token than the load began with."""
        if load.token is not None and (claim.token is None or load.token > claim.token):
            return self._agent.adopt(load.token)
        return claim

    def _count_success(self, load: _Load, size_bytes: int) -> None:
        seconds, tier = time.monotonic() - load.begun_s, load.source.value
        self._costs.observe(load.spec.key, load.source, size_bytes, seconds)
        self.completed_total += 1
        self._failures.forget(load.spec.key)
        LOADS.labels(tier=tier, outcome="ok").inc()
        LOAD_SECONDS.labels(tier=tier).observe(seconds)
        self._measurements.add(load.spec.key, f"load:{tier}", seconds)
        logger.info(
            "model on the device",
            extra={"key": load.spec.key, "source": tier, "seconds": round(seconds, 3)},
        )

    async def _remember_failure(self, load: _Load, claim: Claim, error: LoadFailed) -> None:
        spec = load.spec
        failure = self._failures.remember(spec, error)
        LOADS.labels(tier=load.source.value, outcome="failed").inc()
        logger.warning(
            "load failed",
            extra={"key": spec.key, "error": error, "attempts": failure.attempts},
        )
        load.is_settled = await self._agent.fail_load(spec.key, self._newest(load, claim), failure)


def _mark_retrieved(future: asyncio.Future[Resident]) -> None:
    """The last waiter may have left before an error came."""
    if not future.cancelled():
        future.exception()
