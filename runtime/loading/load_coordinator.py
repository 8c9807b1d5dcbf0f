"""Acquires models on the device for requests: one load per model at a time, many models at once.

A request for a model gets it from the device, joins its running load, or starts a load under a
claim of the registry. After a failed load the next one waits for the backoff. `load_task` runs a
single load.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.model import Tier
from registry.domain.reservation import ClaimScope
from runtime.errors import DeadlinePassed, ModelBroken, RuntimePackageError
from runtime.loading.failures import LoadFailures
from runtime.loading.load_task import LoadRunner, LoadTask
from runtime.loading.orphaned_loads import OrphanedLoadParams, should_continue
from runtime.loading.single_flight import mark_retrieved
from runtime.loading.tier_preloads import TierPreloads
from runtime.storage.load_ticket import LoadTicket
from runtime.threads import in_thread

if TYPE_CHECKING:
    from registry.domain.model import ModelSpec
    from registry.redis.watch import ClusterWatch
    from runtime.loading.model_loader import ModelLoader
    from runtime.loading.model_store import StoreEntry
    from runtime.loading.reload_costs import ReloadCosts
    from runtime.loading.served_model import ServedModel
    from runtime.registration.measurements import Measurements
    from runtime.registration.registry_agent import RegistryAgent


@dataclass(frozen=True, slots=True)
class AcquiredModel:
    """A model that a request uses on the device, until `LoadCoordinator.release`."""

    entry: StoreEntry
    start: str
    """`warm`, or the tier that the load started from."""
    load_s: float

    @property
    def model(self) -> ServedModel:
        return self.entry.model


class LoadCoordinator:
    """All loads of a pod."""

    def __init__(
        self,
        loader: ModelLoader,
        *,
        agent: RegistryAgent,
        watch: ClusterWatch,
        measurements: Measurements,
        costs: ReloadCosts,
        tasks: asyncio.TaskGroup,
        orphaned_loads: OrphanedLoadParams = OrphanedLoadParams(),  # noqa: B008 - it is frozen
    ) -> None:
        self._resolver = loader.resolver
        self._store = loader.store
        self._agent = agent
        self._tasks = tasks
        self._orphaned_loads = orphaned_loads
        self._running: dict[str, LoadTask] = {}
        self._failures = LoadFailures(watch)
        self._preloads = TierPreloads(loader.resolver, tasks, agent.report_tier)
        self._runner = LoadRunner(loader, agent, self._failures, measurements, costs)

    @property
    def completed_total(self) -> int:
        return self._runner.completed_total

    def is_loading(self, key: str) -> bool:
        return key in self._running

    async def acquire(
        self, spec: ModelSpec, *, token: int | None = None, deadline_s: float | None = None
    ) -> AcquiredModel:
        """The model, on the device until released.

        Raises:
            LoadFailed: it cannot be loaded, or its last load failed too recently.
            LoadRefused: the registry refused a claim.
            MemoryBusy: models in use occupy the memory.
            LoadCancelled: the model was unloaded meanwhile.
            DeadlinePassed: the load did not end before the deadline.
        """
        started_s = time.monotonic()
        remaining_s = None if deadline_s is None else deadline_s - started_s
        try:
            async with asyncio.timeout(remaining_s):
                entry = self._acquire_entry(spec)
                while entry is None and (load := self._cancelled_load(spec.key)) is not None:
                    await load.ended.wait()
                    entry = self._acquire_entry(spec)
                if entry is not None:
                    return AcquiredModel(entry, "warm", 0.0)
                return await self._load_and_acquire(spec, token, started_s)
        except TimeoutError as error:
            raise DeadlinePassed(f"the deadline passed while {spec.key} was loaded") from error

    def _acquire_entry(self, spec: ModelSpec) -> StoreEntry | None:
        entry = self._store.acquire(spec.key)
        if entry is None and (reason := self._store.broken_reason(spec.key)) is not None:
            raise ModelBroken(reason)  # it can be loaded again only once it is off the device
        return entry

    def _cancelled_load(self, key: str) -> LoadTask | None:
        """The running load, if it is cancelled, so that no request may join it."""
        load = self._running.get(key)
        return load if load is not None and load.ticket.is_cancelled else None

    async def _load_and_acquire(
        self, spec: ModelSpec, token: int | None, started_s: float
    ) -> AcquiredModel:
        load = self._running.get(spec.key) or self._start(
            spec, ClaimScope.POD, token=token, is_preload=False
        )
        if token is not None:
            load.token = max(token, load.token or 0)
        load.waiters += 1
        load.ticket.prioritise()
        self._preloads.prioritise(spec.key)
        try:
            entry = await asyncio.shield(load.done)
        except BaseException:
            await self._stop_waiting(load)
            raise
        return AcquiredModel(entry, load.source.value, time.monotonic() - started_s)

    async def release(self, acquired: AcquiredModel) -> None:
        await self._store.release(acquired.entry)

    async def _stop_waiting(self, load: LoadTask) -> None:
        """Remove a waiter; a completed load has acquired the model for each remaining one."""
        if not load.done.done():
            load.waiters -= 1
            if load.waiters == 0:
                self._orphan(load)
        elif not load.done.cancelled() and load.done.exception() is None:
            await self._store.release(load.done.result())

    def _orphan(self, load: LoadTask) -> None:
        """Continue a load without waiters as a preload, or cancel it."""
        self._preloads.deprioritise(load.spec.key)
        if load.is_preload or should_continue(load.ticket.progress, self._orphaned_loads):
            load.ticket.deprioritise()
        else:
            load.ticket.cancel("no request waits for it any more")

    async def preload(self, spec: ModelSpec, scope: ClaimScope, tier: Tier = Tier.DEVICE) -> None:
        """Load a model to a tier without acquiring it, at lower priority than requests' loads.

        Raises as `acquire` does, and HostTierRefused if tier `host` cannot take the model.
        """
        if tier is not Tier.DEVICE:
            await self._preloads.preload(spec, tier)
            return
        while (cancelled := self._cancelled_load(spec.key)) is not None:
            await cancelled.ended.wait()
        if self._store.holds(spec.key):
            return
        load = self._running.get(spec.key)
        if load is None:
            load = self._start(spec, scope, token=None, is_preload=True)
        load.is_preload = True
        await asyncio.shield(load.done)

    async def cancel(self, key: str, reason: str) -> None:
        """End all loads of a model and free what they reserved; requests fail with the reason."""
        load = self._running.get(key)
        self._preloads.cancel(key, reason)
        if load is not None:
            load.ticket.cancel(reason)
            await load.ended.wait()
        await self._preloads.wait_ended(key)
        if not self._store.holds(key):
            await in_thread(self._resolver.threads, self._resolver.cache.discard_partial, key)

    async def mark_broken(self, key: str, reason: str) -> None:
        """Remove a hung model from the device and report it; its requests fail with the reason."""
        failure = self._failures.record_broken(key, reason)
        await self._store.retire(key, "broken")
        await self._agent.report_broken(failure)

    # One load

    def _start(
        self, spec: ModelSpec, scope: ClaimScope, *, token: int | None, is_preload: bool
    ) -> LoadTask:
        done: asyncio.Future[StoreEntry] = asyncio.get_running_loop().create_future()
        done.add_done_callback(mark_retrieved)
        ticket = LoadTicket(is_urgent=not is_preload)
        load = LoadTask(spec, scope, done, token, ticket, is_preload=is_preload)
        self._running[spec.key] = load
        self._tasks.create_task(self._run(load))
        return load

    async def _run(self, load: LoadTask) -> None:
        key = load.spec.key
        try:
            entry = await self._runner.run(load)
        except asyncio.CancelledError:
            load.done.cancel()
            raise
        except RuntimePackageError as error:
            load.done.set_exception(error)
        else:
            self._store.acquire(key, load.waiters)
            load.done.set_result(entry)
            await self._store.release(entry)
        finally:
            del self._running[key]
            load.ended.set()
            if not load.is_reported:
                self._agent.report_tier(key)  # releases the claim
