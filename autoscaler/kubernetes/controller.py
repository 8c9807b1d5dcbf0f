"""The loop of the controller: what changed is attended to, and nothing twice at once.

Every replica follows the cluster and the registries; only the leader acts. Whoever becomes leader
starts with a look at everything.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from autoscaler.kubernetes.errors import Changed, ClusterUnreachable, Denied, Gone, KubernetesError
from autoscaler.kubernetes.metrics import FAILURES, MODELS
from autoscaler.kubernetes.models.inference_services import Role
from autoscaler.kubernetes.pools.pod_phases import PodPhases
from registry.errors import RegistryError, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from autoscaler.kubernetes.cluster.cluster_objects import ClusterObjects
    from autoscaler.kubernetes.models.reconciler import ModelReconciler
    from autoscaler.kubernetes.pools.pool_registries import PoolRegistries
    from registry.domain.model import ModelName

logger = logging.getLogger(__name__)

LOOK_AT_ALL_S = 1.0
"""Registries change with every heartbeat; all models are looked at this often at most."""
AT_ONCE = 16
RETRY_S = {Changed: 0.2, ClusterUnreachable: 2.0, RegistryUnavailable: 1.0, Denied: 30.0}


class Controller:
    """One replica's loop."""

    def __init__(
        self, objects: ClusterObjects, models: ModelReconciler, links: PoolRegistries
    ) -> None:
        self._objects = objects
        self._models = models
        self._links = links
        self._pod_phases = PodPhases(objects, links)
        self._wake = asyncio.Event()
        self._registry_changed = True
        self._looked_s = 0.0
        self._due_s: dict[ModelName, float] = {}
        self._failing: set[str] = set()
        self.is_leading = False

    def wake(self) -> None:
        """Something in the cluster changed."""
        self._wake.set()

    def registry_changed(self) -> None:
        """Something in a registry changed."""
        self._registry_changed = True
        self._wake.set()

    def lead(self, *, is_leading: bool) -> None:
        """Begin or cease to act."""
        self.is_leading = is_leading
        self._objects.changed |= self._objects.services.keys()
        self._wake.set()

    async def run(self) -> None:
        """Act until cancelled."""
        while True:
            await self._wait()
            if self._may_act:
                await self._pass()

    @property
    def _may_act(self) -> bool:
        return self.is_leading and self._objects.is_complete

    async def _wait(self) -> None:
        now_s = time.monotonic()
        wakes_s = list(self._due_s.values()) if self._may_act else []
        if self._registry_changed and self._may_act:
            wakes_s.append(self._looked_s + LOOK_AT_ALL_S)
        try:
            async with asyncio.timeout(max(0.0, min(wakes_s, default=now_s + 60.0) - now_s)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _pass(self) -> None:
        now_s = time.monotonic()
        for pool in self._objects.pools():
            self._links.of(pool)
        names = self._objects.changed | {
            name for name, due_s in self._due_s.items() if due_s <= now_s
        }
        self._objects.changed = set()
        if self._registry_changed and now_s >= self._looked_s + LOOK_AT_ALL_S:
            self._registry_changed = False
            self._looked_s = now_s
            names |= self._objects.services.keys()
            await self._shielded("orphans", self._models.withdraw_orphans())
        limit = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(self._attend(name, limit))
            tasks.create_task(self._shielded("pods", self._pod_phases.follow()))
        MODELS.set(sum(each.role is Role.MODEL for each in self._objects.services.values()))

    async def _attend(self, name: ModelName, limit: asyncio.Semaphore) -> None:
        self._due_s.pop(name, None)
        service = self._objects.services.get(name)
        if service is None:
            return
        async with limit:
            try:
                wait_s = await self._models.attend(service)
            except Gone:
                self._objects.forget(service)
                self._models.forget(service.uid)
                return
            except (KubernetesError, RegistryError) as error:
                wait_s = self._note(f"model {name}", error)
            else:
                self._failing.discard(f"model {name}")
        if wait_s is not None:
            self._due_s[name] = time.monotonic() + wait_s

    def _note(self, what: str, error: Exception) -> float:
        """Say once that something fails; returns when to try again, in seconds."""
        FAILURES.labels(cause=type(error).__name__).inc()
        if what not in self._failing and not isinstance(error, Changed):
            self._failing.add(what)
            logger.warning("will be tried again", extra={"what": what}, exc_info=error)
        return next((wait for kind, wait in RETRY_S.items() if isinstance(error, kind)), 5.0)

    async def _shielded(self, what: str, work: Awaitable[None]) -> None:
        try:
            await work
        except (KubernetesError, RegistryError) as error:
            self._note(what, error)
            self._registry_changed = True
        else:
            self._failing.discard(what)
