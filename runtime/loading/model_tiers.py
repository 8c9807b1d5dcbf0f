"""Copies of models to tier `disk` or `host`, preloads and demotions, and the tier of each model.

Preloads need no claim of the registry: the locks of the node's disk cache let one pod download. A
load to the device that needs the same bytes waits for those locks, and makes the preload urgent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor

from common.inference_protocol import PodError
from registry.domain.model import ModelSpec, Tier
from runtime.engines.process_engine import ProcessEngines
from runtime.errors import HostTierRefused
from runtime.loading.model_store import ModelStore
from runtime.loading.processors import Processors, SingleFlight, unless_cancelled
from runtime.loading.weight_resolver import WeightResolver
from runtime.metrics import DEMOTIONS, TIER_BYTES
from runtime.registry_agent import RegistryAgent, TierState
from runtime.storage.load_priority import LoadTicket
from runtime.tasks.engine_task import EngineTask
from runtime.threads import in_thread
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.host_tier import HostTier, PutOutcome

logger = logging.getLogger(__name__)

MAX_PRELOADS = 8
"""At once, of a pod: each occupies a thread."""
MAX_QUEUED = 64
"""While the queue is full, evicted models are not copied; their files stay on disk."""
POLL_INTERVAL_S = 0.05
"""Used while another pod of the node copies the same model to the host tier."""

REFUSALS = {
    PutOutcome.NO_ROOM: "{key} does not fit into its budget beside the models in use",
    PutOutcome.OFF: "it is off at this pod: configure its budget (--host-bytes) and folder",
    PutOutcome.FAILED: "{key} could not be copied; the pod's log says why",
    PutOutcome.STOPPED: "the pod shuts down",
}
DISK_POLL_INTERVAL_S = 2.0


class TierPreloads:
    """All preloads of a pod to these tiers. Owned by the event loop."""

    def __init__(
        self, resolver: WeightResolver, tasks: asyncio.TaskGroup, on_moved: Callable[[str], None]
    ) -> None:
        self._resolver = resolver
        self._on_moved = on_moved
        self._running: SingleFlight[tuple[str, Tier], None] = SingleFlight(tasks)
        self._tickets: defaultdict[str, set[LoadTicket]] = defaultdict(set)
        self._places = asyncio.Semaphore(MAX_PRELOADS)

    async def preload(self, spec: ModelSpec, tier: Tier) -> None:
        """Copy the weights to `tier`, unless they are there.

        Raises LoadFailed, LoadCancelled, and HostTierRefused if the host tier cannot take them.
        """
        await self._running.run((spec.key, tier), lambda: self._run(spec, tier))

    def prioritise(self, key: str) -> None:
        """Make preloads of the model urgent, since a request waits for it."""
        for ticket in self._tickets.get(key, ()):
            ticket.prioritise()

    def deprioritise(self, key: str) -> None:
        for ticket in self._tickets.get(key, ()):
            ticket.deprioritise()

    def cancel(self, key: str, reason: str) -> None:
        for ticket in tuple(self._tickets.get(key, ())):
            ticket.cancel(reason)

    async def wait_ended(self, key: str) -> None:
        """Return once no preload of the model runs."""
        for tier in (Tier.DISK, Tier.HOST):
            await self._running.wait_ended((key, tier))

    async def _run(self, spec: ModelSpec, tier: Tier) -> None:
        ticket = LoadTicket(is_urgent=False)
        self._tickets[spec.key].add(ticket)
        try:
            await unless_cancelled(ticket, self._places.acquire())
            try:
                await self._preload(spec, tier, ticket)
            finally:
                self._places.release()
        finally:
            self._tickets[spec.key].discard(ticket)
            if not self._tickets[spec.key]:
                del self._tickets[spec.key]
            self._on_moved(spec.key)

    async def _preload(self, spec: ModelSpec, tier: Tier, ticket: LoadTicket) -> None:
        resolver, threads = self._resolver, self._resolver.threads
        with await in_thread(threads, resolver.cache.lock_for_use, spec.key):
            await unless_cancelled(ticket, resolver.processors.folder(spec))
            if tier is Tier.HOST and isinstance(await resolver.processors.get(spec), EngineTask):
                raise HostTierRefused(
                    f"{spec.key} cannot be copied to tier host: its engine cannot sleep here;"
                    " preload it to the device"
                )
            if tier is Tier.HOST and not resolver.host.is_on:
                raise _refused(spec, PutOutcome.OFF)  # before a download
            await in_thread(threads, resolver.cache.fetch_weights, spec, ticket)
            await unless_cancelled(ticket, resolver.processors.get(spec))
            if tier is Tier.HOST:
                while True:
                    ticket.raise_if_cancelled()
                    outcome = await in_thread(threads, resolver.copy_to_host, spec)
                    if outcome is not PutOutcome.UNDER_WAY:
                        break
                    await asyncio.sleep(POLL_INTERVAL_S)
                if outcome not in {PutOutcome.DONE, PutOutcome.THERE}:
                    raise _refused(spec, outcome)


def _refused(spec: ModelSpec, outcome: PutOutcome) -> HostTierRefused:
    reason = REFUSALS[outcome].format(key=spec.key)
    return HostTierRefused(f"{spec.key} cannot be copied to tier host: {reason}")


class Demotions:
    """Copies models to tier `host` in the background: after their load to a GPU, or an eviction.

    The device's memory is free at once, since the copy reads the same bytes from the files of tier
    `disk`. One model is copied at a time, which leaves most of the memory bandwidth to inference.
    """

    def __init__(self, resolver: WeightResolver, on_moved: Callable[[str], None]) -> None:
        self._resolver = resolver
        self._on_moved = on_moved
        self._queue: asyncio.Queue[ModelSpec] = asyncio.Queue(MAX_QUEUED)
        self._tickets: dict[str, LoadTicket] = {}
        """Of the queued models and the one that is copied, by key."""

    def offer(self, spec: ModelSpec) -> None:
        """Queue a model, if the host tier is on and the queue not full."""
        if not self._resolver.host.is_on:
            return
        if self._queue.full():
            DEMOTIONS.labels(outcome="queue-full").inc()
            return
        self._tickets.setdefault(spec.key, LoadTicket(is_urgent=False))
        self._queue.put_nowait(spec)

    def withdraw(self, key: str) -> None:
        """Copy no further byte of a model, which is deleted."""
        if (ticket := self._tickets.get(key)) is not None:
            ticket.cancel("the model is deleted")

    async def run(self) -> None:
        while True:
            spec = await self._queue.get()
            ticket = self._tickets.get(spec.key) or LoadTicket(is_urgent=False)
            try:
                outcome = await in_thread(self._resolver.threads, self._copy, spec, ticket)
            except PodError as error:  # its files were deleted or never complete
                logger.info("model not demoted", extra={"key": spec.key, "error": error})
                outcome = PutOutcome.FAILED
            finally:
                self._tickets.pop(spec.key, None)
            DEMOTIONS.labels(outcome=outcome.value).inc()
            self._on_moved(spec.key)

    def _copy(self, spec: ModelSpec, ticket: LoadTicket) -> PutOutcome:
        if ticket.is_cancelled:
            return PutOutcome.STOPPED
        return self._resolver.copy_to_host(spec, lambda: ticket.is_cancelled)


def tier_state(
    key: str, store: ModelStore, host: HostTier, cache: DiskCache, processors: Processors
) -> TierState:
    """The nearest tier of a model, and its bytes there."""
    if store.holds(key):
        return TierState(Tier.DEVICE, store.bytes_of(key))
    asleep_bytes = processors.engines.asleep_bytes(key) if processors.engines else 0
    if host_bytes := host.bytes_of(key) or asleep_bytes:
        return TierState(Tier.HOST, host_bytes)
    size_bytes = cache.bytes_on_disk(key)
    if size_bytes:
        return TierState(Tier.DISK, size_bytes)
    return TierState(Tier.REMOTE, cache.asset_bytes(key) if processors.has(key) else 0)


def used_bytes(
    store: ModelStore,
    host: HostTier,
    cache: DiskCache,
    agent: RegistryAgent,
    engines: ProcessEngines | None,
) -> dict[str, int]:
    """Bytes per tier for a heartbeat; also reports what other pods changed in the host tier."""
    for key in host.changes():
        agent.report_tier(key)
    used = {
        Tier.DEVICE.value: store.used_bytes,
        Tier.HOST.value: host.used_bytes() + (engines.sleeping_bytes if engines else 0),
        Tier.DISK.value: cache.used_bytes(),
    }
    for tier, size_bytes in used.items():
        TIER_BYTES.labels(tier=tier).set(size_bytes)
    return used


async def watch_disk(cache: DiskCache, agent: RegistryAgent, threads: Executor) -> None:
    """Report what other pods change in the shared disk cache, until cancelled."""
    while True:
        await asyncio.sleep(DISK_POLL_INTERVAL_S)
        try:
            changed = await in_thread(threads, cache.refresh)
        except OSError as error:  # retried at the next interval
            logger.warning("disk cache not read", extra={"error": error})
            continue
        for key in changed:
            agent.report_tier(key)
