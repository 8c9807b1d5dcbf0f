"""The controller's loop: reconciles changed models, each by one task at a time.

Every replica follows the cluster and the registries; only the leader acts. A new leader reconciles
all models first.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable

from controller.api import (
    FAILURES,
    MODELS,
    Changed,
    ClusterUnreachable,
    Denied,
    Gone,
    KubernetesError,
)
from controller.application_reconciler import ApplicationReconciler
from controller.graph_reconciler import GraphReconciler
from controller.model_reconciler import ModelReconciler
from controller.objects import ClusterObjects
from controller.pools import PodPhases, PoolRegistries
from controller.resources import Role
from registry.domain.model import ModelName
from registry.errors import RegistryError, RegistryUnavailable

logger = logging.getLogger(__name__)

RECONCILE_ALL_INTERVAL_S = 1.0
"""Registries change with every heartbeat; all models are reconciled this often at most."""
MAX_CONCURRENT = 16
RETRY_DELAYS_S = {Changed: 0.2, ClusterUnreachable: 2.0, RegistryUnavailable: 1.0, Denied: 30.0}
DEFAULT_RETRY_S = 5.0


class Controller:
    def __init__(
        self,
        objects: ClusterObjects,
        models: ModelReconciler,
        applications: ApplicationReconciler,
        graphs: GraphReconciler,
        registries: PoolRegistries,
    ) -> None:
        self._objects = objects
        self._applications = applications
        self._graphs = graphs
        self._models = models
        self._registries = registries
        self._pod_phases = PodPhases(objects, registries)
        self._wake = asyncio.Event()
        self._has_registry_changed = True
        self._reconciled_all_s = 0.0
        self._due_s: dict[ModelName, float] = {}
        self._failing: set[str] = set()
        self.is_leading = False

    def wake(self) -> None:
        """Call after a change of the cluster's objects."""
        self._wake.set()

    def on_registry_change(self) -> None:
        self._has_registry_changed = True
        self._wake.set()

    def set_leading(self, *, is_leading: bool) -> None:
        self.is_leading = is_leading
        self._objects.changed |= self._objects.services.keys()
        self._objects.applications.has_changed = True
        self._objects.graphs.has_changed = True
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wait()
            if self._may_act:
                await self._reconcile_due()

    @property
    def _may_act(self) -> bool:
        return self.is_leading and self._objects.is_complete

    async def _wait(self) -> None:
        """Wait for a change, a retry or the next reconciliation of all models."""
        now_s = time.monotonic()
        due_s = list(self._due_s.values()) if self._may_act else []
        if self._has_registry_changed and self._may_act:
            due_s.append(self._reconciled_all_s + RECONCILE_ALL_INTERVAL_S)
        try:
            async with asyncio.timeout(max(0.0, min(due_s, default=now_s + 60.0) - now_s)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _reconcile_due(self) -> None:
        now_s = time.monotonic()
        for pool in self._objects.pools():
            self._registries.get(pool)
        names = self._objects.changed | {
            name for name, due_s in self._due_s.items() if due_s <= now_s
        }
        self._objects.changed = set()
        has_applications = self._objects.applications.has_changed
        next_all_s = self._reconciled_all_s + RECONCILE_ALL_INTERVAL_S
        if self._has_registry_changed and now_s >= next_all_s:
            self._has_registry_changed = False
            self._reconciled_all_s = now_s
            names |= self._objects.services.keys()
            await self._catch_errors("orphans", self._models.delete_orphans())
            has_applications = True
        limit = asyncio.Semaphore(MAX_CONCURRENT)
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(self._reconcile(name, limit))
            tasks.create_task(self._catch_errors("pods", self._pod_phases.update()))
        if has_applications:  # after the models, which may be their variants
            await self._catch_errors("applications", self._applications.reconcile_all())
        if self._objects.graphs.has_changed:
            await self._catch_errors("graphs", self._graphs.reconcile_all())
        MODELS.set(sum(each.role is Role.MODEL for each in self._objects.services.values()))

    async def _reconcile(self, name: ModelName, limit: asyncio.Semaphore) -> None:
        self._due_s.pop(name, None)
        service = self._objects.services.get(name)
        if service is None:
            return
        async with limit:
            try:
                wait_s = await self._models.reconcile(service)
            except Gone:
                self._objects.remove(service)
                self._models.forget(service.uid)
                return
            except (KubernetesError, RegistryError) as error:
                wait_s = self._record_failure(f"model {name}", error)
            else:
                self._failing.discard(f"model {name}")
        if wait_s is not None:
            self._due_s[name] = time.monotonic() + wait_s

    def _record_failure(self, subject: str, error: Exception) -> float:
        """Count a failure, log the first one of a subject; returns the delay of the retry, s."""
        FAILURES.labels(cause=type(error).__name__).inc()
        if subject not in self._failing and not isinstance(error, Changed):
            self._failing.add(subject)
            logger.warning("failed; retrying", extra={"what": subject}, exc_info=error)
        delays = (delay for kind, delay in RETRY_DELAYS_S.items() if isinstance(error, kind))
        return next(delays, DEFAULT_RETRY_S)

    async def _catch_errors(self, subject: str, work: Awaitable[None]) -> None:
        try:
            await work
        except (KubernetesError, RegistryError) as error:
            self._record_failure(subject, error)
            self._has_registry_changed = True
        else:
            self._failing.discard(subject)
