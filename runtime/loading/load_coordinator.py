"""Acquires models on the device for requests, and runs loads on the event loop.

A request for a model gets it from the device, joins its running load, or starts a load under a
claim of the registry. `load_lifecycle` decides the steps of a load.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from common.inference_protocol.errors import PodError
from registry.domain.model import LoadFailure, ModelSpec, Tier
from registry.redis.watch import ClusterWatch
from runtime.device.device_errors import release_frames
from runtime.errors import DeadlinePassed, LoadFailed
from runtime.loading.failures import LoadFailures
from runtime.loading.file_check import check_files
from runtime.loading.load_lifecycle import LoadLifecycle
from runtime.loading.load_threads import mark_retrieved, unless_cancelled
from runtime.loading.load_turns import Load
from runtime.loading.model_loader import ModelLoader
from runtime.loading.model_store import ModelStore, StoreEntry
from runtime.loading.model_tiers import TierPreloads
from runtime.loading.served_model import ServedModel
from runtime.metrics import LOAD_SECONDS, LOADS
from runtime.registration.measurements import Measurements
from runtime.registration.registry_agent import RegistryAgent
from runtime.threads import in_thread
from runtime.tiers.eviction import ReloadCosts

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class AcquiredModel:
    """A model that a request uses on the device, until `release` or the end of a `with` block."""

    store: ModelStore
    entry: StoreEntry
    start: str = "warm"
    """Or the tier that the load started from."""
    load_s: float = 0.0

    @property
    def model(self) -> ServedModel:
        return self.entry.model

    def release(self, *_: object) -> None:
        self.store.end_request(self.entry)

    def __enter__(self) -> AcquiredModel:
        return self

    __exit__ = release


@dataclass(eq=False, slots=True)
class _LiveLoad(Load):
    done: asyncio.Future[StoreEntry] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once all work of the load has ended."""
    base: StoreEntry | None = None
    """Of an adapter: in use until the load has ended."""


class LoadCoordinator(LoadLifecycle[_LiveLoad, StoreEntry]):
    def __init__(
        self,
        loader: ModelLoader,
        *,
        agent: RegistryAgent,
        watch: ClusterWatch,
        measurements: Measurements,
        costs: ReloadCosts,
        tasks: asyncio.TaskGroup,
    ) -> None:
        super().__init__(
            loader.store,
            agent,
            failures=LoadFailures(lambda: watch.state, watch.registry_now_s),
            costs=costs,
            measurements=measurements,
            state=lambda: watch.state,
        )
        self._loader = loader
        self._resolver = loader.resolver
        self.store = loader.store
        self._agent = agent
        self._tasks = tasks
        self._preloads = TierPreloads(loader.resolver, tasks, agent.report_tier)

    def is_loading(self, key: str) -> bool:
        return key in self.running

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
        if (entry := self.store.acquire(spec.key)) is not None:
            return AcquiredModel(self.store, entry)
        started_s = time.monotonic()
        remaining_s = None if deadline_s is None else deadline_s - started_s
        try:
            async with asyncio.timeout(remaining_s):
                while (load := self._cancelled_load(spec.key)) is not None:
                    await load.ended.wait()
                    if (entry := self.store.acquire(spec.key)) is not None:
                        return AcquiredModel(self.store, entry)
                return await self._load_and_acquire(spec, token, started_s)
        except TimeoutError as error:
            raise DeadlinePassed(f"the deadline passed while {spec.key} was loaded") from error

    def _cancelled_load(self, key: str) -> _LiveLoad | None:
        """The running load, if it is cancelled, so that no request may join it."""
        load = self.running.get(key)
        return load if load is not None and load.ticket.is_cancelled else None

    async def _load_and_acquire(
        self, spec: ModelSpec, token: int | None, started_s: float
    ) -> AcquiredModel:
        load = self.join(spec, token or 0)
        self._preloads.prioritise(spec.key)
        try:
            entry = await asyncio.shield(load.done)
        except BaseException:
            self._stop_waiting(load)
            del load  # it keeps the error, whose traceback has this frame
            raise
        return AcquiredModel(self.store, entry, load.source.value, time.monotonic() - started_s)

    def _stop_waiting(self, load: _LiveLoad) -> None:
        """Remove a waiter; if the load is complete, end the use that it acquired for the waiter."""
        if not load.done.done():
            if load.waiters == 1:
                self._preloads.deprioritise(load.spec.key)
            self.leave(load)
        elif not load.done.cancelled() and load.done.exception() is None:
            self.store.end_use(load.done.result())

    async def preload(
        self,
        spec: ModelSpec,
        max_other_copies: int,
        tier: Tier = Tier.DEVICE,
        *,
        is_withdrawable: bool = False,
        due_in_s: float | None = None,
    ) -> None:
        """Load a model to a tier without acquiring it, at lower priority than requests' loads.

        A withdrawable load to the device ends when this is cancelled, unless others want it; of
        those that no request waits for, the ones that are due soonest come first.
        Raises as `acquire` does, and HostTierRefused if tier `host` cannot take the model.
        """
        if tier is not Tier.DEVICE:
            await self._preloads.preload(spec, tier)
            return
        while (cancelled := self._cancelled_load(spec.key)) is not None:
            await cancelled.ended.wait()
        if self.store.holds(spec.key):
            return
        if not is_withdrawable:
            await asyncio.shield(self.join_preload(spec, max_other_copies).done)
            return
        due_s = None if due_in_s is None else self.now_s() + due_in_s
        load = self.join_withdrawable(spec, max_other_copies, due_s)
        try:
            await asyncio.shield(load.done)
        finally:
            self.withdraw(load)
            del load

    async def check(self, spec: ModelSpec) -> None:
        """Raise LoadFailed where the model's files cannot be read, or do not fit together."""
        if not self.store.holds(spec.key):
            await check_files(self._loader, spec)

    async def cancel(self, key: str, reason: str) -> None:
        """End all loads of a model and free what they reserved; requests fail with the reason."""
        load = self.running.get(key)
        self._preloads.cancel(key, reason)
        if load is not None:
            load.ticket.cancel(reason)
            await load.ended.wait()
        await self._preloads.wait_ended(key)
        if not self.store.holds(key):
            await in_thread(self._resolver.threads, self._resolver.cache.discard_partial, key)

    async def mark_broken(self, key: str, reason: str) -> None:
        """Remove a hung model from the device and report it; its requests fail with the reason."""
        failure = self._failures.record_broken(key, reason)
        self.store.retire(key, "broken")
        await self._agent.report_broken(failure)

    # The steps of a load on the event loop

    def now_s(self) -> float:
        return time.monotonic()

    async def wait(
        self,
        load: _LiveLoad,
        begin: Callable[[Callable[[], None]], None],
        timeout_s: float | None = None,
    ) -> bool:
        ended = asyncio.Event()
        begin(ended.set)
        if ended.is_set():
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await unless_cancelled(load.ticket, ended.wait())
        except TimeoutError:
            return False
        return True

    def new_load(self, spec: ModelSpec, max_other_copies: int, *, is_preload: bool) -> _LiveLoad:
        load = _LiveLoad(spec, max_other_copies, is_preload, time.monotonic())
        load.done.add_done_callback(mark_retrieved)
        return load

    def spawn(self, load: _LiveLoad) -> None:
        self._tasks.create_task(self._run_to_end(load))

    async def _run_to_end(self, load: _LiveLoad) -> None:
        try:
            await self.run(load)
        finally:
            self.end_base(load)
            self.running.pop(load.spec.key, None)
            load.done.cancel()  # no effect unless the pod shuts down
            load.ended.set()

    async def load_to_device(self, load: _LiveLoad) -> StoreEntry:
        """An adapter's base is loaded before its turn, since it needs a turn, too."""
        if (base := self._resolver.processors.bases.of(load.spec)) is not None:
            acquired = await unless_cancelled(load.ticket, self.acquire(base))
            load.base = acquired.entry
        return await super().load_to_device(load)

    def end_base(self, load: _LiveLoad) -> None:
        """End the load's use of an adapter's base; the adapter itself may use it on."""
        if load.base is not None:
            self.store.end_use(load.base)
            load.base = None

    async def nearest_tier(self, load: _LiveLoad) -> Tier:
        return await self._resolver.nearest_tier(load.spec.key)

    async def bring(self, load: _LiveLoad, reserve: Callable[[int], Awaitable[None]]) -> StoreEntry:
        async with self._loader.open(load.spec, load.ticket, load.base) as weights:
            await reserve(weights.memory_bytes)
            entry = await self._loader.copy(weights)
            load.source = weights.tier  # not the nearest if its copy was damaged or deleted
        return entry

    def ended(self, load: _LiveLoad, entry: StoreEntry | None, error: PodError | None) -> None:
        if error is not None:
            release_frames(error)  # which have the load, and that the error
            load.done.set_exception(error)
        elif entry is not None:
            load.done.set_result(entry)

    def as_failure(self, load: _LiveLoad, error: Exception) -> LoadFailed:
        logger.exception("load raised an unexpected error", extra={"key": load.spec.key})
        return LoadFailed(f"{load.spec.key} could not be loaded: {error!r}")

    def count(
        self,
        load: _LiveLoad,
        outcome: str,
        *,
        seconds: float = 0.0,
        failure: LoadFailure | None = None,
    ) -> None:
        key, tier = load.spec.key, load.source.value
        LOADS.labels(tier=tier, outcome=outcome).inc()
        if failure is not None:
            logger.warning(
                "load failed",
                extra={"key": key, "error": failure.message, "attempts": failure.attempts},
            )
        elif outcome == "ok":
            LOAD_SECONDS.labels(tier=tier).observe(seconds)
            extra = {"key": key, "source": tier, "seconds": round(seconds, 3)}
            logger.info("model loaded", extra=extra)
