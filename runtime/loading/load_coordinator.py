"""Acquires models on the device for requests, and runs loads on the event loop.

A request for a model gets it from the device, joins its running load, or starts a load under a
claim of the registry. `load` has the steps of a load.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from common.inference_protocol import PodError
from registry.domain.model import LoadFailure, ModelSpec, Tier
from registry.redis.watch import ClusterWatch
from runtime.device.device_errors import release_frames
from runtime.device.worker import DeviceWorker
from runtime.engines.engine_adapter import EngineAdapter
from runtime.engines.process_engine import ProcessEngines
from runtime.errors import DeadlinePassed, HostTierRefused, LoadFailed
from runtime.loading.load import Loads
from runtime.loading.load_queue import Load, LoadFailures
from runtime.loading.model_loader import ModelLoader
from runtime.loading.model_store import ModelStore, ServedModel, StoreEntry
from runtime.loading.model_tiers import TierPreloads
from runtime.loading.processors import mark_retrieved, unless_cancelled
from runtime.loading.weight_resolver import OpenWeights, check_files
from runtime.measurements import Measurements
from runtime.metrics import LOAD_SECONDS, LOADS
from runtime.pod_process import write_termination_message
from runtime.registry_agent import RegistryAgent
from runtime.storage.load_priority import LoadTicket
from runtime.threads import in_thread
from runtime.tiers.eviction import ReloadCosts

logger = logging.getLogger(__name__)

LiveLoad: TypeAlias = Load[asyncio.Future[StoreEntry]]
LiveLoads: TypeAlias = Loads[asyncio.Future[StoreEntry], OpenWeights, StoreEntry]


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


class LoadCoordinator:
    """Loads on the event loop: their clock, and those who wait for them."""

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
        self.store = loader.store
        self._loader = loader
        self._resolver = loader.resolver
        self._agent = agent
        self._tasks = tasks
        self._preloads = TierPreloads(loader.resolver, tasks, agent.report_tier)
        self._failures = LoadFailures(lambda: watch.state, watch.registry_now_s)
        self.loads: LiveLoads = Loads(
            loader.store,
            clock=self,
            copies=loader,
            registry=agent,
            ends=self,
            failures=self._failures,
            costs=costs,
            measurements=measurements,
            state=lambda: watch.state,
            base_of=self._base_in_use,
        )

    def is_loading(self, key: str) -> bool:
        return key in self.loads.running

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
                    await asyncio.wait({load.waiting})
                    if (entry := self.store.acquire(spec.key)) is not None:
                        return AcquiredModel(self.store, entry)
                return await self._load_and_acquire(spec, token, started_s)
        except TimeoutError as error:
            raise DeadlinePassed(f"the deadline passed while {spec.key} was loaded") from error

    def _cancelled_load(self, key: str) -> LiveLoad | None:
        """The running load, if it is cancelled, so that no request may join it."""
        load = self.loads.running.get(key)
        return load if load is not None and load.ticket.is_cancelled else None

    async def _load_and_acquire(
        self, spec: ModelSpec, token: int | None, started_s: float
    ) -> AcquiredModel:
        load = self.loads.join(spec, token or 0)
        self._preloads.prioritise(spec.key)
        try:
            entry = await asyncio.shield(load.waiting)
        except BaseException:
            self._stop_waiting(load)
            del load  # it keeps the error, whose traceback has this frame
            raise
        return AcquiredModel(self.store, entry, load.source.value, time.monotonic() - started_s)

    def _stop_waiting(self, load: LiveLoad) -> None:
        """Remove a waiter; if the load is complete, end the use that it acquired for the waiter."""
        if not load.waiting.done():
            if load.waiters == 1:
                self._preloads.deprioritise(load.spec.key)
            self.loads.leave(load)
        elif not load.waiting.cancelled() and load.waiting.exception() is None:
            self.store.end_use(load.waiting.result())

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
            engines = self._resolver.engines
            adapter = None if engines is None else await self._sleeping_engine(spec, tier, engines)
            if engines is not None and adapter is not None:
                await self._preload_asleep(spec, engines, adapter, max_other_copies)
            else:
                await self._preloads.preload(spec, tier)
            return
        while (cancelled := self._cancelled_load(spec.key)) is not None:
            await asyncio.wait({cancelled.waiting})
        if self.store.holds(spec.key):
            self.store.keep(spec.key, "unload")
            return
        if not is_withdrawable:
            await asyncio.shield(self.loads.join_preload(spec, max_other_copies).waiting)
            return
        due_s = None if due_in_s is None else time.monotonic() + due_in_s
        load = self.loads.join_withdrawable(spec, max_other_copies, due_s)
        try:
            await asyncio.shield(load.waiting)
        finally:
            self.loads.withdraw(load)
            del load

    async def _sleeping_engine(
        self, spec: ModelSpec, tier: Tier, engines: ProcessEngines
    ) -> EngineAdapter | None:
        """The engine that brings the model to tier `host`; None: it is copied there, or cannot."""
        if tier is not Tier.HOST:
            return None
        folder = await self._resolver.processors.folder(spec)
        adapter = await engines.find(spec, folder)
        if adapter is None or not (await engines.processes.known_facts(adapter)).can_sleep:
            return None
        return adapter

    async def _preload_asleep(
        self,
        spec: ModelSpec,
        engines: ProcessEngines,
        adapter: EngineAdapter,
        max_other_copies: int,
    ) -> None:
        """Start a model's engine in free memory of the device, and put it to sleep.

        Raises as `preload` does.
        """
        resolver, key = self._resolver, spec.key
        if self.store.holds(key) or engines.asleep_bytes(key):
            return
        await self._preloads.preload(spec, Tier.DISK)
        files = await in_thread(resolver.threads, resolver.cache.weight_files, spec)
        needed_bytes = engines.expected_bytes(adapter, key, sum(each.size_bytes for each in files))
        if needed_bytes > self.store.free_bytes:
            raise HostTierRefused(
                f"{key} cannot be copied to tier host: its engine starts on the device, where"
                f" {self.store.free_bytes} bytes are free of {needed_bytes}"
            )
        await self.preload(spec, max_other_copies)
        self.store.retire(key, "unload")
        if not await engines.has_fallen_asleep(key) and not self.store.holds(key):
            raise HostTierRefused(f"{key} cannot be copied to tier host: its engine did not sleep")

    async def check(self, spec: ModelSpec) -> None:
        """Raise LoadFailed where the model's files cannot be read, or do not fit together."""
        if not self.store.holds(spec.key):
            await check_files(self._resolver, spec, build_threads=self._loader.device.thread_count)

    async def cancel(self, key: str, reason: str) -> None:
        """End all loads of a model and free what they reserved; requests fail with the reason."""
        load = self.loads.running.get(key)
        self._preloads.cancel(key, reason)
        if load is not None:
            load.ticket.cancel(reason)
            await asyncio.wait({load.waiting})
        await self._preloads.wait_ended(key)
        if not self.store.holds(key):
            await in_thread(self._resolver.threads, self._resolver.cache.discard_partial, key)

    async def mark_broken(self, key: str, reason: str) -> None:
        """Remove a hung model from the device and report it; its requests fail with the reason."""
        failure = self._failures.record_broken(key, reason)
        self.store.retire(key, "broken")
        await self._agent.report_broken(failure)

    @asynccontextmanager
    async def _base_in_use(self, load: LiveLoad) -> AsyncIterator[StoreEntry | None]:
        """An adapter's base, loaded if necessary; the adapter itself may use it on."""
        base = self._resolver.processors.base_of(load.spec)
        if base is None:
            yield None
            return
        acquired = await unless_cancelled(load.ticket, self.acquire(base))
        try:
            yield acquired.entry
        finally:
            self.store.end_use(acquired.entry)

    # The clock of the loads

    def now_s(self) -> float:
        return time.monotonic()

    async def wait(
        self,
        ticket: LoadTicket,
        begin: Callable[[Callable[[], None]], None],
        timeout_s: float | None = None,
    ) -> bool:
        ended = asyncio.Event()
        begin(ended.set)
        if ended.is_set():
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await unless_cancelled(ticket, ended.wait())
        except TimeoutError:
            return False
        return True

    def spawn(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.create_task(start())

    # Their ends

    def waiters(self, _spec: ModelSpec) -> asyncio.Future[StoreEntry]:
        future: asyncio.Future[StoreEntry] = asyncio.get_running_loop().create_future()
        future.add_done_callback(mark_retrieved)
        return future

    def ended(self, load: LiveLoad, entry: StoreEntry | None, error: PodError | None) -> None:
        if error is not None:
            release_frames(error)  # which have the load, and that the error
            load.waiting.set_exception(error)
        elif entry is not None:
            load.waiting.set_result(entry)

    def aborted(self, load: LiveLoad) -> None:
        self.loads.running.pop(load.spec.key, None)
        load.waiting.cancel()

    def unexpected(self, load: LiveLoad, error: Exception) -> LoadFailed:
        logger.exception("load raised an unexpected error", extra={"key": load.spec.key})
        return LoadFailed(f"{load.spec.key} could not be loaded: {error!r}")

    def count(
        self,
        load: LiveLoad,
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


MAX_STUCK_THREADS = 2
"""Hung inferences at once above which a CPU pod drains and ends: each holds a core for good."""
INTERRUPT_S = 1.0
"""Time for interrupted threads to end."""
MAX_STUCK_PER_MODEL = 1
"""Threads that stay stuck until their model is removed, even if it serves other requests."""


class Watchdog:
    """Receives hung inferences from the device's threads and handles them on the event loop.

    A stuck thread keeps its model's memory and perhaps a core. The worker interrupts it, which ends
    most; a model may have `MAX_STUCK_PER_MODEL` others, so that it alone cannot end the pod of all
    tenants. On a GPU a kernel that does not end blocks all later ones, so the first thread that
    stays stuck ends the pod, which drains first. A GPU that failed permanently, as after an illegal
    address, works only in a new process: the pod's supervisor restarts the pod.
    """

    def __init__(
        self,
        device: DeviceWorker,
        coordinator: LoadCoordinator,
        *,
        max_stuck_threads: int,
        end_pod: Callable[[], None],
    ) -> None:
        self._device = device
        self._coordinator = coordinator
        self._max_stuck_threads = max_stuck_threads
        self._end_pod = end_pod
        self._hung: asyncio.Queue[tuple[str, str, bool]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        device.on_hung = self._on_hung
        device.on_lost = self._on_lost

    # In the device's threads

    def _on_hung(self, key: str, reason: str, is_broken: bool) -> None:
        self._loop.call_soon_threadsafe(self._hung.put_nowait, (key, reason, is_broken))

    def _on_lost(self, reason: str) -> None:
        logger.error("device lost, ending the pod", extra={"reason": reason})
        write_termination_message(reason)
        with suppress(RuntimeError):  # the loop is closed, since the pod has ended
            self._loop.call_soon_threadsafe(self._end_pod)

    # On the event loop

    async def run(self) -> None:
        """Remove hung models until cancelled."""
        while True:
            key, reason, is_broken = await self._hung.get()
            if is_broken:
                await self._coordinator.mark_broken(key, reason)
            await asyncio.sleep(INTERRUPT_S)
            if not is_broken and self._device.stuck_threads_of(key) > MAX_STUCK_PER_MODEL:
                self._device.mark_broken(key, reason)
                await self._coordinator.mark_broken(key, reason)
            stuck = self._device.stuck_threads
            if stuck > self._max_stuck_threads:
                logger.error(
                    "too many hung inferences, ending the pod",
                    extra={"threads": stuck, "allowed": self._max_stuck_threads},
                )
                self._end_pod()
