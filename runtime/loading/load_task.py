"""One load under its claim: what is said to the registry before, after, and when it fails."""

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
    from runtime.loading.failures import Failures
    from runtime.loading.model_loader import LoadedModel, ModelLoader
    from runtime.loading.model_store import StoreEntry
    from runtime.loading.reload_costs import ReloadCosts
    from runtime.registration.measurements import Measurements

logger = logging.getLogger(__name__)

CLAIM_PATIENCE_S = 6.0
"""A refused claim is tried again this long: a gateway's unstarted claim is over after 5 s."""
CLAIM_PAUSE_S = 0.1


@dataclass(slots=True)
class LoadTask:
    """A load under way. Mutable: owned by the event loop."""

    spec: ModelSpec
    scope: ClaimScope
    done: asyncio.Future[StoreEntry]
    token: int | None = None
    ticket: LoadTicket = field(default_factory=LoadTicket)
    source: Tier = Tier.REMOTE
    waiters: int = 0
    is_preload: bool = False
    """Whether it is wanted also if no request waits for it."""
    is_settled: bool = False
    """Whether the registry heard how it ended."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing of it is under way any more."""
    begun_s: float = field(default_factory=time.monotonic)


class LoadRunner:
    """Runs loads; which of them, and for whom, is `loads`."""

    def __init__(
        self,
        loader: ModelLoader,
        *,
        agent: RegistryAgent,
        failures: Failures,
        measurements: Measurements,
        costs: ReloadCosts,
    ) -> None:
        self._loader = loader
        self._store = loader.store
        self._agent = agent
        self._failures = failures
        self._measurements = measurements
        self._costs = costs
        self.completed_total = 0

    async def run(self, load: LoadTask) -> StoreEntry:
        """The model on the device, pinned once so that it is not evicted before it is used.

        Raises as `Loads.hold` does, and LoadCancelled where its wish was withdrawn.
        """
        self._failures.check(load.spec)
        claim = LoadClaim(None, 0)
        try:
            claim = await self._claim(load)
            claim = await self._start(load, claim)
            loaded = await self._loader.bring(load.spec, load.ticket)
            load.source = loaded.source  # a nearer copy may have been spoiled, or have gone
        except LoadFailed as error:
            await self._remember_failure(load, claim, error)
            raise
        except LoadRefused:
            load.is_settled = True  # the claim is somebody else's
            raise
        except LoadCancelled:
            LOADS.labels(tier=load.source.value, outcome="cancelled").inc()
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

    async def _claim(self, load: LoadTask) -> LoadClaim:
        """The gateway's claim where it made one, else one of our own, with some patience."""
        give_up_s = time.monotonic() + CLAIM_PATIENCE_S
        while True:
            load.ticket.raise_if_cancelled()
            if load.token is not None:
                return self._agent.adopt(load.token)
            try:
                return await self._agent.claim(load.spec.key, load.scope)
            except LoadRefused:
                if load.scope is ClaimScope.POOL or time.monotonic() >= give_up_s:
                    raise
            await asyncio.sleep(CLAIM_PAUSE_S)

    async def _start(self, load: LoadTask, claim: LoadClaim) -> LoadClaim:
        key = load.spec.key
        load.source = await self._loader.resolver.nearest_tier(key)
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

    async def _finish(self, load: LoadTask, claim: LoadClaim, loaded: LoadedModel) -> StoreEntry:
        key = load.spec.key
        entry = self._store.add(loaded.model, loaded.memory_bytes, loaded.release)
        self._store.acquire(key)
        try:
            await self._agent.finish_load(key, self._newest(load, claim), loaded.memory_bytes)
        except ClaimLost as error:
            load.is_settled = True
            LOADS.labels(tier=load.source.value, outcome="fenced").inc()
            await self._store.retire(key, "claim-lost")
            await self._store.release(entry)
            raise LoadRefused(f"the load of {key} was given to somebody else") from error
        load.is_settled = True
        self._count_success(load, loaded.memory_bytes)
        return entry

    def _newest(self, load: LoadTask, claim: LoadClaim) -> LoadClaim:
        """A joiner may have brought a newer token than the load began with."""
        if load.token is not None and (claim.token is None or load.token > claim.token):
            return self._agent.adopt(load.token)
        return claim

    def _count_success(self, load: LoadTask, size_bytes: int) -> None:
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

    async def _remember_failure(self, load: LoadTask, claim: LoadClaim, error: LoadFailed) -> None:
        spec = load.spec
        failure = self._failures.remember(spec, error)
        LOADS.labels(tier=load.source.value, outcome="failed").inc()
        logger.warning(
            "load failed",
            extra={"key": spec.key, "error": error, "attempts": failure.attempts},
        )
        load.is_settled = await self._agent.fail_load(spec.key, self._newest(load, claim), failure)
