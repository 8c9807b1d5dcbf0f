"""Brings one model's InferenceService, the registry and the status in line.

Level-triggered: it looks at what is, not at what happened, so it may run at any time and after
any outage.
"""

from __future__ import annotations

import datetime
import logging
import time
from typing import TYPE_CHECKING

from autoscaler.kubernetes.metrics import STATUS_WRITES
from autoscaler.kubernetes.models.inference_services import FINALIZER, Role, owner_of
from autoscaler.kubernetes.models.model_status import (
    GATHER_S,
    CanaryVersion,
    ModelFacts,
    count_copies,
    evaluate,
    make_status,
    seconds_until_write,
)
from registry.domain.model import name_of_key

if TYPE_CHECKING:
    from autoscaler.kubernetes.cluster.cluster_api import ClusterApi
    from autoscaler.kubernetes.cluster.cluster_objects import ClusterObjects
    from autoscaler.kubernetes.models.inference_services import ServiceObject
    from autoscaler.kubernetes.pools.pool_registries import PoolRegistries, PoolRegistry
    from autoscaler.kubernetes.settings import ControllerSettings
    from registry.domain.model import ModelName

logger = logging.getLogger(__name__)

UNLOAD_CHECK_S = 0.5
SYNC_CHECK_S = 0.2


class ModelReconciler:
    """What the controller does for each model. `attend` says when to look again."""

    def __init__(
        self,
        settings: ControllerSettings,
        api: ClusterApi,
        objects: ClusterObjects,
        links: PoolRegistries,
    ) -> None:
        self._settings = settings
        self._api = api
        self._objects = objects
        self._links = links
        self._written_s: dict[str, float] = {}
        self._deleted_s: dict[str, float] = {}
        self._told: dict[str, tuple[str, str]] = {}
        """Per object, the last event: the same one is not posted twice in a row."""

    async def attend(self, service: ServiceObject) -> float | None:
        """Do what is to be done now; seconds until it should be looked at again, if at all.

        Raises KubernetesError, RegistryError.
        """
        if service.is_deleted:
            return await self._unload(service) if service.is_held else None
        match service.role:
            case Role.MODEL:
                return await self._serve(service)
            case Role.MISPLACED | Role.POOL if service.problems:
                await self._tell(service, "InvalidModel", "; ".join(service.problems))
        if service.is_held:  # it was a model and is none any more
            return await self._unload(service)
        return None

    def forget(self, uid: str) -> None:
        """An object is gone."""
        for memory in (self._written_s, self._deleted_s, self._told):
            memory.pop(uid, None)

    # Serving

    async def _serve(self, service: ServiceObject) -> float | None:
        link = self._links.of(service.pool) if self._objects.has_pool(service.pool) else None
        if service.spec is not None and not service.is_held:
            await self._api.set_finalizers(service, (*service.finalizers, FINALIZER))
        if link is not None and not link.is_synced:
            return SYNC_CHECK_S  # what was last said of the model stands
        if service.spec is not None and link is not None:
            await self._declare(service, link)
        return await self._write_status(service, link)

    async def _declare(self, service: ServiceObject, link: PoolRegistry) -> None:
        record = link.state.models.get(service.name)
        if service.spec is None or (record is not None and record.spec == service.spec):
            return
        [outcome] = await link.registry.put_models([service.spec])
        logger.info("model %s", outcome, extra={"model": str(service.name)})

    async def _write_status(
        self, service: ServiceObject, link: PoolRegistry | None
    ) -> float | None:
        facts = self._facts(service, link)
        verdict = evaluate(service, facts)
        status = make_status(service, facts, _now())
        wait_s = seconds_until_write(
            service,
            status,
            age_s=_age_s(service.created),
            since_last_s=time.monotonic() - self._written_s.get(service.uid, -GATHER_S),
        )
        if wait_s is None or wait_s > 0:
            return wait_s
        await self._api.write_status(service, status)
        STATUS_WRITES.inc()
        self._written_s[service.uid] = time.monotonic()
        if verdict.is_ready is not None:
            await self._tell(
                service, verdict.reason, verdict.message, is_warning=not verdict.is_ready
            )
        return None

    def _facts(self, service: ServiceObject, link: PoolRegistry | None) -> ModelFacts:
        record = link.state.models.get(service.name) if link is not None else None
        names = {"namespace": service.name.namespace, "name": service.name.name}
        holders = (
            link.state.holders(record.serving.key).values() if link is not None and record else ()
        )
        return ModelFacts(
            pool_is_known=link is not None,
            serving=record.serving if record is not None else None,
            failure=record.failure if record is not None else None,
            copies=count_copies(holders),
            url=self._settings.url.format(**names),
            address=self._settings.address.format(**names),
            canaries=_canaries(link, service.name) if link is not None else (),
        )

    # Unloading

    async def _unload(self, service: ServiceObject) -> float | None:
        """Withdraw a model, wait until no pod has it, then let the object go."""
        since_s = self._deleted_s.setdefault(service.uid, time.monotonic())
        if service.pool and self._objects.has_pool(service.pool):
            self._links.of(service.pool)
        links = self._links.known().values()
        is_late = time.monotonic() - since_s > self._settings.unload_timeout
        if not all(link.is_synced for link in links) and not is_late:
            return UNLOAD_CHECK_S
        for link in links:
            record = link.state.models.get(service.name)
            if record is not None and owner_of(record.spec) == service.uid:
                await link.registry.delete_models([service.name])
        holders = sorted({pod for link in links for pod in _holders(link, service.name)})
        if holders and not is_late:
            return UNLOAD_CHECK_S
        if holders:
            await self._tell(
                service, "UnloadTimeout",
                f"pods {', '.join(holders)} still hold the model after "
                f"{self._settings.unload_timeout:g} s; they unload it when they can",
            )  # fmt: skip
        kept = [each for each in service.finalizers if each != FINALIZER]
        await self._api.set_finalizers(service, kept)
        self._deleted_s.pop(service.uid, None)
        logger.info("model unloaded", extra={"model": str(service.name)})
        return None

    async def withdraw_orphans(self) -> None:
        """Take models out of the registries whose object is gone, or is in another pool now.

        What somebody declared in the registry itself stays.
        """
        for pool, link in self._links.known().items():
            if not link.is_synced:
                continue
            orphans = [
                name
                for name, record in link.state.models.items()
                if (uid := owner_of(record.spec)) is not None
                and not self._is_declared(name, uid, pool)
            ]
            if orphans:
                await link.registry.delete_models(orphans)
                logger.info("models withdrawn", extra={"models": [str(name) for name in orphans]})

    def _is_declared(self, name: ModelName, uid: str, pool: str) -> bool:
        service = self._objects.services.get(name)
        if service is None or service.uid != uid:
            return False
        return service.is_deleted or (service.role is Role.MODEL and service.pool == pool)

    async def _tell(
        self, service: ServiceObject, reason: str, message: str, *, is_warning: bool = True
    ) -> None:
        if self._told.get(service.uid) == (reason, message):
            return
        self._told[service.uid] = (reason, message)
        await self._api.tell(
            service.name, service.uid, reason=reason, message=message, is_warning=is_warning
        )


def _canaries(link: PoolRegistry, name: ModelName) -> list[CanaryVersion]:
    records = link.state.models
    return [
        CanaryVersion(records[each.model].serving, each.percent) for each in link.canaries.of(name)
    ]


def _holders(link: PoolRegistry, name: ModelName) -> set[str]:
    return {
        pod
        for key, holders in link.state.residency.items()
        if name_of_key(key) == name
        for pod in holders
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _age_s(created: str) -> float:
    born = datetime.datetime.fromisoformat(created)
    return (datetime.datetime.now(datetime.UTC) - born).total_seconds()
