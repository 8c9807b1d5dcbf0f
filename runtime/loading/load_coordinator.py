"""Holding models on the device: one load per model at a time, different models side by side.

A request that needs a model holds it: it is there, or the request joins the load under way, or it
begins one under a claim of the registry. Failed loads are not tried again before their time. What
a load does is `one_load`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.model import Tier
from registry.domain.reservation import ClaimScope
from runtime.errors import DeadlinePassed, ModelBroken, RuntimePackageError
from runtime.loading.failures import Failures
from runtime.loading.load_task import LoadRunner, LoadTask
from runtime.loading.orphaned_loads import OrphanedLoadParams, should_continue
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
    """A model a request holds on the device; give it back with `Loads.release`."""

    entry: StoreEntry
    start: str
    """`warm`, or the tier the request had to wait from."""
    load_s: float

    @property
    def model(self) -> ServedModel:
        """The model."""
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
        abandoned: OrphanedLoadParams = OrphanedLoadParams(),  # noqa: B008 - it is frozen
    ) -> None:
        self._resolver = loader.resolver
        self._store = loader.store
        self._agent = agent
        self._tasks = tasks
        self._abandoned = abandoned
        self._under_way: dict[str, LoadTask] = {}
        self._failures = Failures(watch)
        self._preloads = TierPreloads(loader.resolver, tasks, agent.report_tier)
        self._runner = LoadRunner(
            loader,
            agent=agent,
            failures=self._failures,
            measurements=measurements,
            costs=costs,
        )

    @property
    def completed_total(self) -> int:
        """Loads that ended well."""
        return self._runner.completed_total

    def is_loading(self, key: str) -> bool:
        """Whether the model is on its way to the device."""
        return key in self._under_way

    async def acquire(
        self, spec: ModelSpec, *, token: int | None = None, deadline_s: float | None = None
    ) -> AcquiredModel:
        """The model, on the device until released.

        Raises:
            LoadFailed: it cannot be loaded, or was tried too recently.
            LoadRefused: the registry gave no claim.
            MemoryBusy: models in use hold the memory.
            LoadCancelled: the model was unloaded meanwhile.
            DeadlinePassed: the load takes longer than the request may wait.
        """
        started_s = time.monotonic()
        remaining_s = None if deadline_s is None else deadline_s - started_s
        try:
            async with asyncio.timeout(remaining_s):
                entry = self._pin(spec)
                while entry is None and (load := self._ending(spec.key)) is not None:
                    await load.over.wait()
                    entry = self._pin(spec)
                if entry is not None:
                    return AcquiredModel(entry, "warm", 0.0)
                return await self._join(spec, token, started_s)
        except TimeoutError as error:
            raise DeadlinePassed(f"the deadline passed while {spec.key} was loaded") from error

    def _pin(self, spec: ModelSpec) -> StoreEntry | None:
        entry = self._store.acquire(spec.key)
        if entry is None and (reason := self._store.broken_reason(spec.key)) is not None:
            raise ModelBroken(reason)  # it leaves the device; only then may it be loaded again
        return entry

    def _ending(self, key: str) -> LoadTask | None:
        """The load under way that was given up, if it is: nobody joins it."""
        load = self._under_way.get(key)
        return load if load is not None and load.ticket.is_cancelled else None

    async def _join(self, spec: ModelSpec, token: int | None, started_s: float) -> AcquiredModel:
        """Wait for the load under way, or for a new one."""
        load = self._under_way.get(spec.key) or self._begin(
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
        """Give a held model back."""
        await self._store.release(acquired.entry)

    async def _stop_waiting(self, load: LoadTask) -> None:
        """A waiter leaves: the load pins the model once for each that is left when it is done."""
        if not load.done.done():
            load.waiters -= 1
            if load.waiters == 0:
                self._abandon(load)
        elif not load.done.cancelled() and load.done.exception() is None:
            await self._store.release(load.done.result())

    def _abandon(self, load: LoadTask) -> None:
        """Nobody waits any more: the load makes way for others, or ends."""
        self._preloads.deprioritise(load.spec.key)
        if load.is_preload or should_continue(load.ticket.progress, self._abandoned):
            load.ticket.deprioritise()
        else:
            load.ticket.cancel("nobody waits for it any more")

    async def preload(self, spec: ModelSpec, scope: ClaimScope, tier: Tier = Tier.DEVICE) -> None:
        """Bring a model to a tier without holding it; loads that requests wait for go first.

        Raises as `hold` does, and HostTierRefused where tier `host` does not take it.
        """
        if tier is not Tier.DEVICE:
            await self._preloads.bring(spec, tier)
            return
        while (ending := self._ending(spec.key)) is not None:
            await ending.over.wait()
        if self._store.holds(spec.key):
            return
        load = self._under_way.get(spec.key)
        if load is None:
            load = self._begin(spec, scope, token=None, is_preload=True)
        load.is_preload = True
        await asyncio.shield(load.done)

    async def cancel(self, key: str, reason: str) -> None:
        """End what is under way for a model, and give back what it took; requests hear why."""
        load = self._under_way.get(key)
        self._preloads.cancel(key, reason)
        if load is not None:
            load.ticket.cancel(reason)
            await load.over.wait()
        await self._preloads.wait_over(key)
        if not self._store.holds(key):
            await in_thread(self._resolver.threads, self._resolver.cache.discard_partial, key)

    async def mark_broken(self, key: str, reason: str) -> None:
        """Take a model that hangs off the device and say so; requests to it hear the reason."""
        failure = self._failures.remember_broken(key, reason)
        await self._store.retire(key, "broken")
        await self._agent.report_broken(failure)

    # One load

    def _begin(
        self, spec: ModelSpec, scope: ClaimScope, *, token: int | None, is_preload: bool
    ) -> LoadTask:
        done: asyncio.Future[StoreEntry] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_mark_retrieved)
        ticket = LoadTicket(is_urgent=not is_preload)
        load = LoadTask(spec, scope, done, token, ticket, is_preload=is_preload)
        self._under_way[spec.key] = load
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
            del self._under_way[key]
            load.over.set()
            if not load.is_settled:
                self._agent.report_tier(key)  # which takes the claim back


def _mark_retrieved(future: asyncio.Future[StoreEntry]) -> None:
    """The last waiter may have left before an error came."""
    if not future.cancelled():
        future.exception()
