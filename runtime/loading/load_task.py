"""One load under its claim, reported to the registry when it starts, succeeds or fails."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from registry.domain.model import ModelSpec, Tier
from registry.domain.reservation import ClaimScope
from registry.errors import ClaimLost
from runtime.errors import LoadCancelled, LoadFailed, LoadRefused, RuntimePackageError
from runtime.metrics import LOAD_SECONDS, LOADS
from runtime.registration.registry_agent import LoadClaim, RegistryAgent
from runtime.storage.load_ticket import LoadTicket

if TYPE_CHECKING:
    from runtime.loading.failures import LoadFailures
    from runtime.loading.model_loader import LoadedModel, ModelLoader
    from runtime.loading.model_store import StoreEntry
    from runtime.loading.reload_costs import ReloadCosts
    from runtime.registration.measurements import Measurements

logger = logging.getLogger(__name__)

CLAIM_TIMEOUT_S = 6.0
"""Of retries of a refused claim: a gateway's claim expires after 5 s without a load."""
CLAIM_RETRY_INTERVAL_S = 0.1


@dataclass(slots=True)
class LoadTask:
    """A running load. Mutable: owned by the event loop."""

    spec: ModelSpec
    scope: ClaimScope
    done: asyncio.Future[StoreEntry]
    token: int | None = None
    ticket: LoadTicket = field(default_factory=LoadTicket)
    source: Tier = Tier.REMOTE
    waiters: int = 0
    is_preload: bool = False
    """Whether the load continues without waiting requests."""
    is_reported: bool = False
    """Whether the registry received the result, or another pod has the claim."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once all work of the load has ended."""
    started_s: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class LoadRunner:
    """Runs the loads that the coordinator starts."""

    loader: ModelLoader
    agent: RegistryAgent
    failures: LoadFailures
    measurements: Measurements
    costs: ReloadCosts
    completed_total: int = 0
    """Number of successful loads."""

    async def run(self, load: LoadTask) -> StoreEntry:
        """The model on the device, acquired once so that it is not evicted before its use.

        Raises as `LoadCoordinator.acquire` does, and LoadCancelled if its ticket is cancelled.
        """
        self.failures.check(load.spec)
        claim = LoadClaim(None, 0)
        try:
            claim = await self._claim(load)
            claim = await self._start(load, claim)
            loaded = await self.loader.load(load.spec, load.ticket)
            load.source = loaded.source  # not the nearest tier if its copy was damaged or deleted
        except LoadFailed as error:
            await self._record_failure(load, claim, error)
            raise
        except LoadRefused:
            load.is_reported = True  # another pod has the claim
            raise
        except LoadCancelled:
            LOADS.labels(tier=load.source.value, outcome="cancelled").inc()
            raise
        except RuntimePackageError:
            LOADS.labels(tier=load.source.value, outcome="refused").inc()
            raise
        except Exception as error:
            logger.exception("load raised an unexpected error", extra={"key": load.spec.key})
            failure = LoadFailed(f"{load.spec.key} could not be loaded: {error!r}")
            await self._record_failure(load, claim, failure)
            raise failure from error
        return await self._finish(load, claim, loaded)

    async def _claim(self, load: LoadTask) -> LoadClaim:
        """The gateway's claim, if it made one, else a new one; retries a refused one."""
        deadline_s = time.monotonic() + CLAIM_TIMEOUT_S
        while True:
            load.ticket.raise_if_cancelled()
            if load.token is not None:
                return self.agent.claim_of(load.token)
            try:
                return await self.agent.claim(load.spec.key, load.scope)
            except LoadRefused:
                if load.scope is ClaimScope.POOL or time.monotonic() >= deadline_s:
                    raise
            await asyncio.sleep(CLAIM_RETRY_INTERVAL_S)

    async def _start(self, load: LoadTask, claim: LoadClaim) -> LoadClaim:
        key = load.spec.key
        load.source = await self.loader.resolver.nearest_tier(key)
        try:
            await self.agent.start_load(key, self._newest(load, claim), load.source)
        except ClaimLost:  # the gateway's claim expired before the load started
            load.token = None
            claim = await self.agent.claim(key, ClaimScope.POD)
            try:
                await self.agent.start_load(key, claim, load.source)
            except ClaimLost as error:
                raise LoadRefused(f"another pod got the claim for {key}") from error
        return claim

    async def _finish(self, load: LoadTask, claim: LoadClaim, loaded: LoadedModel) -> StoreEntry:
        key = load.spec.key
        entry = self.loader.store.add(loaded.model, loaded.memory_bytes, loaded.free)
        self.loader.store.acquire(key)
        try:
            await self.agent.finish_load(key, self._newest(load, claim), loaded.memory_bytes)
        except ClaimLost as error:
            load.is_reported = True
            LOADS.labels(tier=load.source.value, outcome="fenced").inc()
            await self.loader.store.retire(key, "claim-lost")
            await self.loader.store.release(entry)
            raise LoadRefused(f"another pod got the claim for {key}") from error
        load.is_reported = True
        self._record_success(load, loaded.memory_bytes)
        return entry

    def _newest(self, load: LoadTask, claim: LoadClaim) -> LoadClaim:
        """The claim, unless a request that joined the load has a newer token."""
        if load.token is not None and (claim.token is None or load.token > claim.token):
            return self.agent.claim_of(load.token)
        return claim

    def _record_success(self, load: LoadTask, size_bytes: int) -> None:
        seconds, tier = time.monotonic() - load.started_s, load.source.value
        self.costs.observe(load.spec.key, load.source, size_bytes, seconds)
        self.completed_total += 1
        self.failures.clear(load.spec.key)
        LOADS.labels(tier=tier, outcome="ok").inc()
        LOAD_SECONDS.labels(tier=tier).observe(seconds)
        self.measurements.add(load.spec.key, f"load:{tier}", seconds)
        logger.info(
            "model loaded",
            extra={"key": load.spec.key, "source": tier, "seconds": round(seconds, 3)},
        )

    async def _record_failure(self, load: LoadTask, claim: LoadClaim, error: LoadFailed) -> None:
        spec = load.spec
        failure = self.failures.record(spec, error)
        LOADS.labels(tier=load.source.value, outcome="failed").inc()
        logger.warning(
            "load failed",
            extra={"key": spec.key, "error": error, "attempts": failure.attempts},
        )
        load.is_reported = await self.agent.fail_load(spec.key, self._newest(load, claim), failure)
