"""Aligns the pod's models with the declared ones.

Loads new generations and the model placed on the pod, removes withdrawn models. The only model of a
pod as KServe's runtimes run it is declared here, and kept loaded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from common.inference_protocol import PodError
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Tier, name_of_key
from registry.domain.pod_state import ANY_COPIES
from registry.domain.tenant_rules import UNKNOWN, Quota, TenantRules, ends_access
from registry.errors import RegistryError
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.engines.process_engine import ProcessEngines
from runtime.engines.server_engine import ModelServer
from runtime.engines.server_process import ServerProcess
from runtime.errors import LoadFailed, ServerUnavailable, StorageFailed
from runtime.loading.load_coordinator import LoadCoordinator
from runtime.loading.model_store import ModelStore
from runtime.loading.model_tiers import Demotions
from runtime.loading.processors import Processors
from runtime.metrics import SERVER_UP, drop_series
from runtime.registry_agent import RegistryAgent
from runtime.threads import in_thread
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.eviction import ReloadCosts
from runtime.tiers.host_tier import HostTier

logger = logging.getLogger(__name__)

RETRY_INTERVAL_S = 1.0
"""Time between attempts to load a new generation while other pods hold its claim."""
POLL_INTERVAL_S = 0.5
"""Between looks at the only model of a pod."""


class PodRules:
    """The rules for tenants: the last that the registry had, also while it has none."""

    def __init__(self, state: ClusterState, *, has_tenants: bool) -> None:
        self._state, self._last = state, UNKNOWN if has_tenants else TenantRules()
        self._has_tenants = has_tenants

    @property
    def last(self) -> TenantRules:
        if self._state.rules is not None:
            self._last = self._state.rules
        return self._last

    def __call__(self) -> TenantRules | None:
        """None: all is one owner's."""
        return None if self.last.is_open and not self._has_tenants else self.last

    def quota(self, namespace: str, kind: Quota) -> int | None:
        return self.last.quota(namespace, kind)


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The parts of a pod that hold its models."""

    watch: ClusterWatch
    rules: PodRules
    costs: ReloadCosts
    cache: DiskCache
    host: HostTier
    store: ModelStore
    agent: RegistryAgent
    processors: Processors
    demotions: Demotions
    coordinator: LoadCoordinator
    engines: ProcessEngines | None


class ModelSync:
    """Level-triggered: compares the models of this pod with the declared ones."""

    def __init__(
        self, parts: ModelParts, threads: Executor, *, retire_grace_s: float, placed_model: str = ""
    ) -> None:
        self._watch, self._store, self._cache = parts.watch, parts.store, parts.cache
        self._host = parts.host
        self._parts = parts
        self._threads = threads
        self._placed_retry_s = 0.0
        self._placed = ModelName.parse(placed_model) if placed_model else None
        self._retire_grace_s = retire_grace_s
        self._changed = asyncio.Event()
        self._seen: tuple[object, ...] = ()
        self._rules = parts.rules.last
        """Those that the pod's copies were checked against."""
        self._absent_since_s: dict[str, float] = {}
        self._attempted_s: dict[str, float] = {}
        self._named: set[ModelName] = set()
        """Models that are declared, or were and may have series of metrics."""
        self._unnamed_since_s: dict[ModelName, float] = {}
        self._watch.subscribe(self._on_change)

    def _on_change(self) -> None:
        """Start a pass if the declared models, or the rules for tenants, changed.

        A pass covers all models, and most changes are of other pods' tiers, which it does not need.
        """
        seen = (self._watch.state.models_version, self._parts.rules.last)
        if seen != self._seen:
            self._seen = seen
            self._changed.set()

    def _keys(self) -> set[str]:
        return self._cache.keys() | self._host.keys() | self._store.by_key.keys()

    async def run(self) -> None:
        await self._watch.wait_synced()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                for spec in self._new_generations():
                    tasks.create_task(self._preload(spec, 0))
                placed, now_s = self._absent_placed_model(), time.monotonic()
                if placed is not None and now_s >= self._placed_retry_s:
                    self._placed_retry_s = now_s + RETRY_INTERVAL_S
                    tasks.create_task(self._preload(placed, ANY_COPIES))
                for spec, reason in self._ended_grants():
                    tasks.create_task(self._revoke(spec.key, reason))
                await self._remove_withdrawn()
                self._drop_series()
                await self._wait()

    async def _wait(self) -> None:
        """Wait for a change, or for the next attempt or removal."""
        is_due = bool(self._absent_since_s or self._attempted_s or self._unnamed_since_s)
        is_due = is_due or self._absent_placed_model() is not None
        pause_s = min(self._retire_grace_s, RETRY_INTERVAL_S) if is_due else None
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._changed.wait()

    # New generations

    def _new_generations(self) -> list[ModelSpec]:
        """New generations to load: those whose previous generation is on this pod's device."""
        wanted = []
        now_s = time.monotonic()
        for record in self._watch.state.models.values():
            key = record.spec.key
            if record.previous is None or not self._store.holds(record.previous.key):
                self._attempted_s.pop(key, None)
                continue
            is_present = self._store.holds(key) or self._parts.coordinator.is_loading(key)
            if is_present or now_s < self._attempted_s.get(key, 0.0) + RETRY_INTERVAL_S:
                continue
            self._attempted_s[key] = now_s
            wanted.append(record.spec)
        return wanted

    def _absent_placed_model(self) -> ModelSpec | None:
        """The model that a plan placed here, if it is neither on the device nor being loaded."""
        record = self._watch.state.models.get(self._placed) if self._placed else None
        if record is None or record.spec.is_stopped:
            return None
        spec = record.serving
        is_present = self._store.holds(spec.key) or self._parts.coordinator.is_loading(spec.key)
        return None if is_present else spec

    async def _preload(self, spec: ModelSpec, max_other_copies: int) -> None:
        try:
            await self._parts.coordinator.preload(spec, max_other_copies)
        except PodError as error:
            logger.info("model not loaded", extra={"key": spec.key, "error": error})

    # Grants that ended

    def _ended_grants(self) -> list[tuple[ModelSpec, str]]:
        """Models that the rules granted at the last pass and do not now, and why."""
        before, self._rules = self._rules, self._parts.rules.last
        if before == self._rules:
            return []
        specs = [load.spec for load in self._parts.coordinator.loads.running.values()]
        specs += [entry.model.spec for entry in self._store.by_key.values()]
        for record in self._watch.state.models.values():
            specs += record.generations
        ended = {spec.key: (spec, ends_access(spec, before, self._rules)) for spec in specs}
        return [(spec, reason) for spec, reason in ended.values() if reason is not None]

    async def _revoke(self, key: str, reason: str) -> None:
        """Stop its loads, refuse its requests, and drop the copies but those on disk.

        Files on disk are used again only as whoever reads the model then.
        """
        self._refuse(key, reason)
        self._parts.demotions.withdraw(key)
        self._parts.processors.forget(key)
        await self._parts.coordinator.cancel(key, reason)
        self._refuse(key, reason)  # if its load ended first
        self._end_engine(key)
        with suppress(OSError):  # the folder is gone
            await in_thread(self._threads, self._host.discard, key)
        self._parts.agent.report_tier(key)
        logger.info("grant ended", extra={"key": key, "reason": reason})

    def _refuse(self, key: str, reason: str) -> None:
        if (entry := self._store.by_key.get(key)) is not None:
            entry.model.device_model.broken_reason = reason  # else requests could keep it for ever
            self._store.retire(key, "grant-ended")

    # Withdrawn models

    async def _remove_withdrawn(self) -> None:
        """Remove models that are not declared.

        Models without a new generation have a grace period, since an empty registry may still fill.
        """
        declared, now_s = self._watch.state.declared_keys(), time.monotonic()
        for key in self._keys():
            if key in declared:
                self._store.keep(key, "withdrawn")
                self._absent_since_s.pop(key, None)
                continue
            since_s = self._absent_since_s.setdefault(key, now_s)
            if self._parts.coordinator.is_loading(key):
                continue
            is_replaced = name_of_key(key) in self._watch.state.models  # by another generation
            if is_replaced or now_s - since_s >= self._retire_grace_s:
                await self._remove(key)
        for key in self._absent_since_s.keys() - self._keys():
            del self._absent_since_s[key]

    async def _remove(self, key: str) -> None:
        self._store.retire(key, "withdrawn")
        self._parts.demotions.withdraw(key)
        if self._store.holds(key):
            return  # in use; retried at the next pass
        self._end_engine(key)
        try:
            await in_thread(self._threads, self._host.discard, key)
            await in_thread(self._threads, self._cache.discard, key)
        except (OSError, StorageFailed) as error:  # retried at the next pass
            logger.warning("files not deleted", extra={"key": key, "error": error})
            return
        self._parts.costs.forget(key)
        self._parts.processors.forget(key)
        self._parts.agent.report_tier(key)
        logger.info("model withdrawn", extra={"key": key})

    def _end_engine(self, key: str) -> None:
        """Of a model that sleeps."""
        if self._parts.engines is not None and not self._store.holds(key):
            self._parts.engines.processes.release(key)

    def _drop_series(self) -> None:
        """Drop metrics of deleted models, once the requests under way have ended, too."""
        declared, now_s = self._watch.state.models.keys(), time.monotonic()
        self._named |= declared
        deleted = self._named - declared
        for name in self._unnamed_since_s.keys() - deleted:  # declared again
            del self._unnamed_since_s[name]
        for name in deleted:
            if now_s - self._unnamed_since_s.setdefault(name, now_s) >= self._retire_grace_s:
                drop_series(name)
                self._named.remove(name)
                del self._unnamed_since_s[name]


def single_model_spec(name: str, folder: str) -> ModelSpec:
    return ModelSpec(ModelName("default", name), f"file://{folder}", policy=ModelPolicy(pin=True))


@dataclass(eq=False, slots=True)
class SingleModel:
    """The model of a pod for one, declared in a registry of the pod's own, and kept loaded.

    KServe puts the weights into a folder before the pod starts.
    """

    spec: ModelSpec
    registry: Registry
    watch: ClusterWatch
    coordinator: LoadCoordinator
    store: ModelStore
    _reported: str = field(default="", init=False)

    def is_loaded(self) -> bool:
        return self.store.holds(self.spec.key)

    async def run(self) -> None:
        """Declare and load the model, again if it was lost, until cancelled."""
        await self.watch.wait_synced()
        while True:
            try:
                await self._reconcile()
                self._reported = ""
            except (RegistryError, PodError) as error:
                self._report(error)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _reconcile(self) -> None:
        record = self.watch.state.models.get(self.spec.name)
        if record is None or record.spec != self.spec:
            await self.registry.put_models([self.spec])
        if not self.is_loaded():
            await self.coordinator.preload(self.spec, ANY_COPIES, Tier.DEVICE)

    def _report(self, error: Exception) -> None:
        """Log once per cause, not once per attempt."""
        if str(error) != self._reported:
            self._reported = str(error)
            logger.warning("the pod's model is not loaded yet", extra={"error": error})


# Watches the pod's model server: while it is away the pod has no lease and no models.
#
# When it is back, the pod registers again and loads the models that it had.


INTERVAL_S: Final = 1.0
FAST_INTERVAL_S: Final = 0.2
"""While it is away."""
HUNG_PROBES: Final = 3
"""Liveness calls without an answer, in a row, after which it counts as hung."""
KILL_AFTER_S: Final = 30.0
"""Time of a hang after which a server that the pod started is ended."""


class ServerWatch:
    def __init__(
        self,
        server: ModelServer,
        process: ServerProcess | None,
        parts: ModelParts,
        threads: Executor,
    ) -> None:
        self._server = server
        self._process = process
        self._parts = parts
        self._threads = threads
        self._wake = asyncio.Event()
        self._hung_since_s: float | None = None
        self._unanswered = 0
        self._said = ""
        self._lost: dict[str, ModelSpec] = {}
        server.on_suspect = self._wake.set
        server.on_model_lost = self._model_lost

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._process is not None:
                tasks.create_task(self._process.run())
            while True:
                self._wake.clear()
                if await self._is_live():
                    if not self._server.is_up:
                        await self._came_up()
                    for spec in self._take_lost():
                        tasks.create_task(self._reload(spec))
                elif self._server.is_up:
                    self._went_down()
                await self._wait()

    async def _wait(self) -> None:
        pause_s = INTERVAL_S if self._server.is_up else FAST_INTERVAL_S
        waits = [self._wake.wait()]
        if self._process is not None and self._server.is_up:
            waits.append(self._process.ended.wait())
        pending = [asyncio.ensure_future(each) for each in waits]
        try:
            await asyncio.wait(pending, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in pending:
                each.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _is_live(self) -> bool:
        """Whether the server answers; one that hangs is up until it has hung for some calls."""
        if self._process is not None and self._process.ended.is_set():
            self._process.ended.clear()
            return False  # its models are gone, even if another one answers by now
        try:
            problem = await self._server.client.problem()
        except TimeoutError:
            return self._hangs()
        self._unanswered, self._hung_since_s = 0, None
        if problem and not self._server.is_up:
            self._say(problem)
        return not problem

    def _hangs(self) -> bool:
        """Whether it counts as live although it does not answer: it may be at a call of ours."""
        now_s = asyncio.get_running_loop().time()
        self._unanswered += 1
        self._hung_since_s = self._hung_since_s or now_s
        hung_s = now_s - self._hung_since_s
        limit_s = self._server.busy_limit_s
        if self._process is not None and hung_s > max(KILL_AFTER_S, limit_s):
            self._hung_since_s = None
            self._process.end_hung()
        return self._server.is_up and (self._unanswered < HUNG_PROBES or hung_s < limit_s)

    async def _came_up(self) -> None:
        """Read what the server is; one that speaks no V2 stays away, and the log says why."""
        try:
            info = await in_thread(self._threads, self._server.client.info)
        except (LoadFailed, ServerUnavailable) as error:
            self._say(str(error))
            return
        self._said = ""
        self._server.info, self._server.is_up = info, True
        SERVER_UP.set(1)
        self._parts.agent.release()
        logger.info(
            "model server up",
            extra={"url": self._server.client.url, "server": info.name, "version": info.version},
        )

    def _say(self, problem: str) -> None:
        """Log a problem once, not each time it is found."""
        if problem != self._said:
            self._said = problem
            logger.warning("no model server yet", extra={"problem": problem})

    def _went_down(self) -> None:
        store = self._parts.store
        self._server.is_up = False
        SERVER_UP.set(0)
        self._parts.agent.hold()
        logger.error(
            "model server away", extra={"url": self._server.client.url, "models": len(store.by_key)}
        )
        for key in tuple(store.by_key):
            self._model_lost(key)

    def _model_lost(self, key: str) -> None:
        """Take a model off the device, and load it again once the server is up."""
        entry = self._parts.store.by_key.get(key)
        if entry is None or entry.retire_reason is not None:
            return
        self._lost[key] = entry.model.spec
        self._parts.store.retire(key, "server-lost")
        self._wake.set()

    def _take_lost(self) -> list[ModelSpec]:
        """The lost models that are off the device by now, and still declared."""
        declared = self._parts.watch.state.declared_keys()
        found = [
            spec
            for key, spec in self._lost.items()
            if self._server.is_up and not self._parts.store.holds(key)
        ]
        for spec in found:
            del self._lost[spec.key]
        return [spec for spec in found if spec.key in declared]

    async def _reload(self, spec: ModelSpec) -> None:
        with suppress(PodError):  # counted and logged as each load; requests try again
            await self._parts.coordinator.preload(spec, ANY_COPIES)
