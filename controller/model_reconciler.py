"""Reconciles one model's InferenceService with the registry, and writes its status.

Level-triggered: it acts on the current state, not on events, so it may run at any time and after
any outage.
"""

import datetime
import logging
import time
from dataclasses import replace
from urllib.parse import urlsplit

from controller.api import STATUS_WRITES, ClusterApi
from controller.model_status import (
    WRITE_INTERVAL_S,
    CanaryVersion,
    ModelFacts,
    count_copies,
    evaluate,
    has_components,
    make_status,
    seconds_until_write,
)
from controller.objects import ClusterObjects
from controller.pools import PoolRegistries, PoolRegistry
from controller.resources import FINALIZER, Role, ServiceObject, owner_of
from controller.settings import ControllerSettings
from registry.domain.model import ModelName, name_of_key
from registry.errors import InvalidModel
from registry.inference_service.tenant_rules import access_problem, quota_problem

logger = logging.getLogger(__name__)

UNLOAD_POLL_INTERVAL_S = 0.5
UNLOAD_TIMEOUT_S = 60.0
"""For a deleted model to leave all pods: longer than the requests that hold it; `kubectl` waits."""
SYNC_POLL_INTERVAL_S = 0.2
REFUSED_POLL_INTERVAL_S = 30.0
"""Until a model is tried again that the pool refused, or whose Service could not be made: the
pool's autoscaler, or the controller's rights, may have changed."""


class NotAdmitted(InvalidModel):
    """The rules of a pool forbid a model."""


class ModelReconciler:
    """Registers and unloads models, and writes their status and events."""

    def __init__(
        self,
        settings: ControllerSettings,
        api: ClusterApi,
        objects: ClusterObjects,
        registries: PoolRegistries,
    ) -> None:
        self._settings = settings
        self._api = api
        self._objects = objects
        self._registries = registries
        self._written_s: dict[str, float] = {}
        self._deleted_s: dict[str, float] = {}
        self._service_problems: dict[str, str] = {}
        """By uid: what is wrong with the Service of a model with a transformer; empty: nothing."""
        self._last_events: dict[str, tuple[str, str]] = {}
        """By uid; an equal event is not posted again."""

    async def reconcile(self, service: ServiceObject) -> float | None:
        """Returns seconds until the next call is due, or None if only a change makes it due.

        Raises KubernetesError, RegistryError.
        """
        if service.is_deleted:
            return await self._unload(service) if service.has_finalizer else None
        match service.role:
            case Role.MODEL:
                return await self._serve(service)
            case Role.POOL if not self._objects.is_pool(service):
                await self._post_event(
                    service,
                    "PoolNotAdmitted",
                    f"pools are not admitted in namespace {service.name.namespace!r}; the operator "
                    "may add it to the controller's PILOTLIGHT_POOL_NAMESPACES",
                )
            case Role.MISPLACED | Role.POOL if service.problems:
                await self._post_event(service, "InvalidModel", "; ".join(service.problems))
        if service.has_finalizer:  # it was a model before its last change
            return await self._unload(service)
        return None

    def forget(self, uid: str) -> None:
        """Drop the state kept for a removed object."""
        for by_uid in (self._written_s, self._deleted_s, self._service_problems, self._last_events):
            by_uid.pop(uid, None)

    # Serving

    async def _serve(self, service: ServiceObject) -> float | None:
        registry = (
            self._registries.get(service.pool) if self._objects.has_pool(service.pool) else None
        )
        if service.spec is not None and not service.has_finalizer:
            await self._api.set_finalizers(service, (*service.finalizers, FINALIZER))
        if registry is not None and not registry.is_synced:
            return SYNC_POLL_INTERVAL_S  # until then the last status stays
        if has_components(service.spec):
            await self._make_predictor_service(service)
        if service.spec is not None and registry is not None:
            try:
                self._check_rules(service)
                await self._put_model(service, registry)
            except InvalidModel as error:
                if isinstance(error, NotAdmitted):
                    await self._withdraw(service, registry)
                refused = replace(service, problems=tuple(error.problems))
                wait_s = await self._write_status(refused, registry)
                return REFUSED_POLL_INTERVAL_S if wait_s is None else wait_s
        wait_s = await self._write_status(service, registry)
        if wait_s is None and self._service_problems.get(service.uid):
            return REFUSED_POLL_INTERVAL_S
        return wait_s

    async def _make_predictor_service(self, service: ServiceObject) -> None:
        """The Service at which KServe's transformer and explainer call the model: the gateway's.

        Once in the life of this process: nothing else of ours changes it.
        """
        if self._service_problems.get(service.uid) == "":
            return
        host = urlsplit(self._settings.address).hostname or ""
        self._service_problems[service.uid] = await self._api.make_predictor_service(service, host)

    def _check_rules(self, service: ServiceObject) -> None:
        """Raises InvalidModel, and NotAdmitted if the pool's rules forbid the model."""
        pool = self._objects.pool(service.pool)
        if service.spec is None or pool is None:
            return
        if pool.rules is None:
            raise InvalidModel([f"pool {service.pool!r} has mistakes: {'; '.join(pool.problems)}"])
        problem = access_problem(service.spec, pool.rules, service.pool) or quota_problem(
            service.spec, self._objects.earlier_models(service), pool.rules
        )
        if problem is not None:
            raise NotAdmitted([problem])

    async def _withdraw(self, service: ServiceObject, registry: PoolRegistry) -> None:
        """Delete a model that an earlier change of the rules, or of itself, has made forbidden."""
        record = registry.state.models.get(service.name)
        if record is not None and owner_of(record.spec) == service.uid:
            await registry.client.delete_models([service.name])

    async def _put_model(self, service: ServiceObject, registry: PoolRegistry) -> None:
        record = registry.state.models.get(service.name)
        if service.spec is None or (record is not None and record.spec == service.spec):
            return
        [outcome] = await registry.client.put_models([service.spec])
        logger.info("model %s", outcome, extra={"model": str(service.name)})

    async def _write_status(
        self, service: ServiceObject, registry: PoolRegistry | None
    ) -> float | None:
        facts = self._facts(service, registry)
        condition = evaluate(service, facts)
        status = make_status(service, facts, _now())
        wait_s = seconds_until_write(
            service,
            status,
            age_s=_age_s(service.created),
            since_last_s=time.monotonic() - self._written_s.get(service.uid, -WRITE_INTERVAL_S),
        )
        if wait_s is None or wait_s > 0:
            return wait_s
        is_shared = has_components(service.spec)
        await self._api.write_status(service, status, is_shared=is_shared)
        STATUS_WRITES.inc()
        self._written_s[service.uid] = time.monotonic()
        if condition.is_ready is not None:
            await self._post_event(
                service, condition.reason, condition.message, is_warning=not condition.is_ready
            )
        return None

    def _facts(self, service: ServiceObject, registry: PoolRegistry | None) -> ModelFacts:
        record = registry.state.models.get(service.name) if registry is not None else None
        names = {"namespace": service.name.namespace, "name": service.name.name}
        holders = (
            registry.state.holders(record.serving.key).values()
            if registry is not None and record
            else ()
        )
        return ModelFacts(
            pool_is_known=registry is not None,
            serving=record.serving if record is not None else None,
            failure=record.failure if record is not None else None,
            copies=count_copies(holders),
            url=self._settings.url.format(**names),
            address=self._settings.address.format(**names),
            canaries=_canaries(registry, service.name) if registry is not None else (),
            has_server=registry is not None and registry.state.has_server,
            component_problem=self._service_problems.get(service.uid, ""),
        )

    # Unloading

    async def _unload(self, service: ServiceObject) -> float | None:
        """Delete a model from the registry; remove the finalizer once no pod holds it."""
        since_s = self._deleted_s.setdefault(service.uid, time.monotonic())
        if service.pool and self._objects.has_pool(service.pool):
            self._registries.get(service.pool)
        registries = self._registries.opened().values()
        is_late = time.monotonic() - since_s > UNLOAD_TIMEOUT_S
        if not all(registry.is_synced for registry in registries) and not is_late:
            return UNLOAD_POLL_INTERVAL_S
        for registry in registries:
            await self._withdraw(service, registry)
        holders = sorted(
            {pod for registry in registries for pod in _holders(registry, service.name)}
        )
        if holders and not is_late:
            return UNLOAD_POLL_INTERVAL_S
        if holders:
            await self._post_event(
                service,
                "UnloadTimeout",
                f"pods {', '.join(holders)} still hold the model after "
                f"{UNLOAD_TIMEOUT_S:g} s; they unload it once it is idle",
            )
        kept = [each for each in service.finalizers if each != FINALIZER]
        await self._api.set_finalizers(service, kept)
        self._deleted_s.pop(service.uid, None)
        logger.info("model unloaded", extra={"model": str(service.name)})
        return None

    async def delete_orphans(self) -> None:
        """Delete models whose InferenceService is gone or has moved to another pool.

        Models that no InferenceService declares stay.
        """
        for pool, registry in self._registries.opened().items():
            if not registry.is_synced:
                continue
            orphans = [
                name
                for name, record in registry.state.models.items()
                if (uid := owner_of(record.spec)) is not None
                and not self._is_declared(name, uid, pool)
            ]
            if orphans:
                await registry.client.delete_models(orphans)
                logger.info(
                    "orphaned models deleted", extra={"models": [str(name) for name in orphans]}
                )

    def _is_declared(self, name: ModelName, uid: str, pool: str) -> bool:
        service = self._objects.services.get(name)
        if service is None or service.uid != uid:
            return False
        return service.is_deleted or (service.role is Role.MODEL and service.pool == pool)

    async def _post_event(
        self, service: ServiceObject, reason: str, message: str, *, is_warning: bool = True
    ) -> None:
        if self._last_events.get(service.uid) == (reason, message):
            return
        self._last_events[service.uid] = (reason, message)
        await self._api.post_event(
            service.name, service.uid, reason=reason, message=message, is_warning=is_warning
        )


def _canaries(registry: PoolRegistry, name: ModelName) -> list[CanaryVersion]:
    records = registry.state.models
    return [
        CanaryVersion(records[each.model].serving, each.percent)
        for each in registry.canaries.of(name)
    ]


def _holders(registry: PoolRegistry, name: ModelName) -> set[str]:
    return {
        pod
        for key, holders in registry.state.residency.items()
        if name_of_key(key) == name
        for pod in holders
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _age_s(created: str) -> float:
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(created)
    return age.total_seconds()
