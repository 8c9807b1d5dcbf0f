"""Follows the declared models: brings new generations in, takes what is withdrawn away."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from registry.domain.model import ModelName, ModelSpec, name_of_key
from registry.domain.reservation import ClaimScope
from runtime.errors import RuntimePackageError, StorageFailed
from runtime.threads import in_thread

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from registry.redis.watch import ClusterWatch
    from runtime.loading.load_coordinator import LoadCoordinator
    from runtime.loading.model_store import ModelStore
    from runtime.loading.processors import Processors
    from runtime.loading.reload_costs import ReloadCosts
    from runtime.registration.registry_agent import RegistryAgent
    from runtime.tiers.disk_cache import DiskCache
    from runtime.tiers.host_tier import HostTier

logger = logging.getLogger(__name__)

ATTEMPT_EVERY_S = 1.0
"""A new generation is tried again this often while other pods hold the claim for it."""


class ModelSync:
    """Keeps what this pod has in line with what is declared."""

    def __init__(
        self,
        *,
        watch: ClusterWatch,
        store: ModelStore,
        cache: DiskCache,
        host: HostTier,
        costs: ReloadCosts,
        processors: Processors,
        coordinator: LoadCoordinator,
        agent: RegistryAgent,
        threads: Executor,
        retire_grace_s: float,
    ) -> None:
        self._watch = watch
        self._store = store
        self._cache = cache
        self._host = host
        self._costs = costs
        self._processors = processors
        self._coordinator = coordinator
        self._agent = agent
        self._threads = threads
        self._retire_grace_s = retire_grace_s
        self._changed = asyncio.Event()
        self._seen_models_version = -1
        self._absent_since_s: dict[str, float] = {}
        self._attempted_s: dict[str, float] = {}
        watch.subscribe(self._look)

    def _look(self) -> None:
        """Most changes are other pods' tiers: only those of models are worth a pass over all."""
        version = self._watch.state.models_version
        if version != self._seen_models_version:
            self._seen_models_version = version
            self._changed.set()

    def keys(self) -> set[str]:
        """Models of which this pod has files or a network."""
        return self._cache.keys() | self._host.keys() | set(self._store.model_keys())

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._watch.wait_synced()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                for spec in self._wanted_generations():
                    tasks.create_task(self._bring(spec))
                await self._take_away()
                await self._wait()

    async def _wait(self) -> None:
        """Until something changed, or the time of something absent is over."""
        is_due = bool(self._absent_since_s) or bool(self._attempted_s)
        pause_s = min(self._retire_grace_s, ATTEMPT_EVERY_S) if is_due else None
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            return

    # New generations

    def _wanted_generations(self) -> list[ModelSpec]:
        """New generations of models that this pod serves the previous generation of."""
        wanted = []
        now_s = time.monotonic()
        for record in self._watch.state.models.values():
            key = record.spec.key
            if record.previous is None or not self._store.holds(record.previous.key):
                self._attempted_s.pop(key, None)
                continue
            is_here = self._store.holds(key) or self._coordinator.is_loading(key)
            if is_here or now_s < self._attempted_s.get(key, 0.0) + ATTEMPT_EVERY_S:
                continue
            self._attempted_s[key] = now_s
            wanted.append(record.spec)
        return wanted

    async def _bring(self, spec: ModelSpec) -> None:
        try:
            await self._coordinator.preload(spec, ClaimScope.POOL)
        except RuntimePackageError as error:
            logger.info("new generation not brought", extra={"key": spec.key, "error": error})

    # Withdrawn models

    def _declared_keys(self) -> set[str]:
        declared = set()
        for record in self._watch.state.models.values():
            declared.add(record.spec.key)
            if record.previous is not None:
                declared.add(record.previous.key)
        return declared

    def _is_replaced(self, key: str) -> bool:
        """Whether the model is still declared, under another generation."""
        name: ModelName = name_of_key(key)
        return name in self._watch.state.models

    async def _take_away(self) -> None:
        """Drop what is no longer declared, after a grace: a new registry may still be filling."""
        declared, now_s = self._declared_keys(), time.monotonic()
        for key in self.keys():
            if key in declared:
                self._absent_since_s.pop(key, None)
                continue
            since_s = self._absent_since_s.setdefault(key, now_s)
            if self._coordinator.is_loading(key):
                continue
            if self._is_replaced(key) or now_s - since_s >= self._retire_grace_s:
                await self._forget(key)
        for key in self._absent_since_s.keys() - self.keys():
            del self._absent_since_s[key]

    async def _forget(self, key: str) -> None:
        await self._store.retire(key, "withdrawn")
        if self._store.holds(key):
            return  # in use: again when its last user is done
        try:
            await in_thread(self._threads, self._host.discard, key)
            await in_thread(self._threads, self._cache.discard, key)
        except (OSError, StorageFailed) as error:  # tried again with the next pass
            logger.warning("files not taken away", extra={"key": key, "error": error})
            return
        self._costs.forget(key)
        self._processors.forget(key)
        self._agent.report_tier(key)
        logger.info("model withdrawn", extra={"key": key})
