"""Reconciles one model's InferenceService or Model with the registry, and writes its status.

Level-triggered: it acts on the current state, not on events, so it may run at any time and after
any outage.
"""

import datetime
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from controller.api import STATUS_WRITES, Changed, ClusterApi, Denied, Gone
from controller.component_objects import component_objects, predictor_service, removed_objects
from controller.model_status import (
    WRITE_INTERVAL_S,
    ModelFacts,
    ReadyCondition,
    component_condition,
    count_copies,
    evaluate,
    make_status,
    seconds_until_write,
    withdrawn_status,
)
from controller.objects import ClusterObjects, Key
from controller.pools import PoolRegistries, PoolRegistry
from controller.resources import (
    FINALIZER,
    KSERVE_FINALIZER,
    Kind,
    Role,
    ServiceObject,
    name_problem,
    owner_of,
    read_service,
)
from controller.settings import ControllerSettings
from registry.domain.model import ModelName, ModelSpec, name_of_key
from registry.domain.tenant_rules import access_problem, quota_problem
from registry.errors import InvalidModel
from registry.inference_service.components import COMPONENTS
from registry.inference_service.fields import auth_problem
from registry.inference_service.rollouts import rolled_out_of, rollout_of, trial_of

logger = logging.getLogger(__name__)

WITHDRAWN = (
    "no pool serves it: it lacks the annotation pilotlight.io/pool, and its mode ModelMesh cannot "
    "change; set the annotation again, or delete the InferenceService and create it in another mode"
)
UNLOAD_POLL_INTERVAL_S = 0.5
UNLOAD_TIMEOUT_S = 60.0
"""For a deleted model to leave all pods: longer than the requests that hold it; `kubectl` waits."""
REFUSED_POLL_INTERVAL_S = 30.0
"""Until a model is tried again that the pool refused, and between looks at ready components."""
COMPONENT_POLL_INTERVAL_S = 2.0
"""Between looks at components that are not ready."""


RULES_POLL_INTERVAL_S = 0.1
"""Until the registry has the rules that admit a model."""


class NotAdmitted(InvalidModel):
    """The rules of a pool forbid a model."""


@dataclass(slots=True)
class _Known:
    """What this process remembers of one object."""

    uid: str
    written_s: float = -WRITE_INTERVAL_S
    """When its status was written last."""
    deleted_s: float | None = None
    """When it was first seen as deleted; None: it is not."""
    components: dict[str, ReadyCondition] = field(default_factory=dict)
    """The readiness of transformer and explainer."""
    applied: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """What the API server has of them."""
    last_event: tuple[str, str] | None = None
    """An equal event is not posted again."""
    due_event: ReadyCondition | None = None
    """Of a status that was written, and not posted yet."""
    shown: object = None
    """What its status shows of the registry."""


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
        self._known: dict[Key, _Known] = {}
        self.kserve_problem = ""
        """What is wrong with KServe's version, for the status of InferenceServices."""
        account = f"{settings.namespace}:pilotlight-controller"
        self._way_out = (
            "a namespace allows it by: kubectl create rolebinding pilotlight-transformers"
            f" --clusterrole=pilotlight-transformers --serviceaccount={account}"
        )

    async def reconcile(self, key: Key) -> float | None:
        """See `controller.Reconcile`. Without a name: models in registries that no object declares.

        Raises KubernetesError, RegistryError.
        """
        if key.name is None:
            await self._delete_orphans()
            return None
        service = self._objects.get(key)
        if service is None:
            self._known.pop(key, None)
            return None
        try:
            return await self._reconcile(service)
        except Gone:
            self._objects.update(service, is_removed=True)
            return None

    def changed_in_registries(self) -> list[Key]:
        """The models whose status shows something else than their registry, or a quota, has now."""
        return self._objects.take_changed_quotas() + [
            key
            for key, known in self._known.items()
            if (service := self._objects.get(key)) is not None
            and service.role is Role.MODEL
            and known.shown != self._shown(service)
        ]

    def _of(self, service: ServiceObject) -> "_Known":
        key = Key(service.kind, service.name)
        known = self._known.get(key)
        if known is None or known.uid != service.uid:
            known = self._known[key] = _Known(service.uid)
        return known

    async def _reconcile(self, service: ServiceObject) -> float | None:
        if service.is_deleted:
            return await self._unload(service) if service.has_finalizer else None
        match service.role:
            case Role.MODEL:
                return await self._serve(service)
            case Role.POOL if self._objects.is_pool(service):
                self._registries.get(service.pool)
            case Role.POOL:
                await self._post_event(
                    service,
                    "PoolNotAdmitted",
                    f"pools are not admitted in namespace {service.name.namespace!r}; the operator "
                    "may add it to the controller's PILOTLIGHT_POOL_NAMESPACES",
                )
        if service.problems and (service.role is Role.MISPLACED or self._objects.is_pool(service)):
            await self._post_event(service, "InvalidModel", "; ".join(service.problems))
        if service.was_model:  # before its last change
            return await self._unload(service)
        return None

    # Serving

    async def _serve(self, service: ServiceObject) -> float | None:
        if (other := self._objects.namesake(service)) is not None:
            problem = name_problem(other)
            return await self._write_status(replace(service, problems=(problem,), spec=None), None)
        registry = self._registry(service)
        self._of(service).shown = self._shown(service)
        await self._post_due_event(service)
        if service.spec is not None and not service.has_finalizer:
            finalizers = (*service.finalizers, FINALIZER)
            service = await self._api.set_finalizers(service, finalizers)
            self._objects.update_by_reply(service)
        if registry is not None and not registry.is_synced:
            return None  # the last status stays until it is
        await self._make_components(service)
        if service.spec is not None and registry is not None:
            try:
                self._check_rules(service)
                if not await self._put_model(service, registry):
                    return RULES_POLL_INTERVAL_S
            except InvalidModel as error:
                if isinstance(error, NotAdmitted):
                    await self._withdraw(service, registry)
                refused = replace(service, problems=tuple(error.problems))
                wait_s = await self._write_status(refused, registry)
                return REFUSED_POLL_INTERVAL_S if wait_s is None else wait_s
        wait_s = await self._write_status(service, registry)
        if wait_s is None and service.components:
            are_ready = all(each.is_ready for each in self._of(service).components.values())
            return REFUSED_POLL_INTERVAL_S if are_ready else COMPONENT_POLL_INTERVAL_S
        return wait_s

    async def _make_components(self, service: ServiceObject) -> None:
        """Make, change or delete what transformer and explainer consist of, and see what is ready.

        Those that a model no longer has are in its last status.
        """
        known, gateway = self._of(service), self._settings.address
        for component in COMPONENTS:
            if component in service.components:
                wanted = component_objects(service, component, gateway)
                wanted.append(predictor_service(service, gateway))
                known.components[component] = await self._make_component(known, component, wanted)
            elif component in service.status.get("components", {}) and service.spec is not None:
                for unwanted in removed_objects(service, component):
                    await self._api.delete_owned(unwanted)
                known.components.pop(component, None)
                known.applied.pop(component, None)

    async def _make_component(
        self, known: _Known, component: str, wanted: Sequence[Mapping[str, Any]]
    ) -> ReadyCondition:
        try:
            if known.applied.get(component) != wanted:
                for each in wanted:
                    await self._api.apply_owned(each)
                known.applied[component] = wanted
            return component_condition(component, await self._api.read_owned(wanted[0]))
        except Gone:  # somebody has deleted it: it is made again
            known.applied.pop(component, None)
            return component_condition(component, {})
        except (Denied, Changed) as error:
            way_out = f"; {self._way_out}" if isinstance(error, Denied) else ""
            problem = f"its objects cannot be made: {error}{way_out}"
            return ReadyCondition(False, f"{component.capitalize()}NotReady", problem)

    def _check_rules(self, service: ServiceObject) -> None:
        """Raises InvalidModel, and NotAdmitted if the pool's rules forbid the model."""
        rules = self._objects.rules(service.pool)
        if service.spec is None:
            return
        problem = access_problem(service.spec, rules, service.pool) or quota_problem(
            service.spec, self._objects.earlier_models(service), rules
        )
        if problem is None and self._settings.auth == "open":
            problem = auth_problem(service.spec)
        if problem is not None:
            raise NotAdmitted([problem])

    async def _withdraw(self, service: ServiceObject, registry: PoolRegistry) -> None:
        """Delete a model that an earlier change of the rules, or of itself, has made forbidden."""
        models = registry.state.models
        await registry.client.delete_models(
            name
            for name in (service.name, trial_of(service.name, models) or service.name)
            if name in models and owner_of(models[name].spec) == service.uid
        )

    async def _put_model(self, service: ServiceObject, registry: PoolRegistry) -> bool:
        """False: later, once pods can know the rules that admit it."""
        if service.spec is None:
            return True
        models = registry.state.models
        rollout = rollout_of(service.spec, models)
        name = rollout.put.name
        if name not in models or models[name].spec != rollout.put:
            if registry.state.rules != self._objects.rules(service.pool):
                return False
            [outcome] = await registry.client.put_models([rollout.put])
            logger.info("model %s", outcome, extra={"model": str(name)})
        if rollout.ended:
            await registry.client.delete_models([rollout.ended])
        return True

    async def _write_status(
        self, service: ServiceObject, registry: PoolRegistry | None
    ) -> float | None:
        known, facts = self._of(service), self._facts(service, registry)
        known.shown = self._shown(service)
        condition = evaluate(service, facts)
        status = make_status(service, facts, _now())
        wait_s = seconds_until_write(
            service,
            status,
            age_s=_age_s(service.created),
            since_last_s=time.monotonic() - known.written_s,
        )
        if wait_s is None or wait_s > 0:
            return wait_s
        written = await self._api.write_status(service, status)
        self._objects.update_by_reply(read_service(written))
        STATUS_WRITES.inc()
        known.written_s = time.monotonic()
        if condition.is_ready is not None:
            known.due_event = condition
        await self._post_due_event(service)
        return None

    async def _post_due_event(self, service: ServiceObject) -> None:
        """Of a written status; it stays due until the API server has taken it."""
        known = self._of(service)
        if (due := known.due_event) is not None:
            await self._post_event(service, due.reason, due.message, is_warning=not due.is_ready)
            known.due_event = None

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
            components=self._of(service).components if service.components else {},
            kserve_problem=self.kserve_problem if service.kind is Kind.SERVICE else "",
            is_open=self._settings.auth == "open",
        )

    def _registry(self, service: ServiceObject) -> PoolRegistry | None:
        """That of a model's pool; None: there is no pool."""
        if not self._objects.has_pool(service.pool):
            return None
        return self._registries.get(service.pool)

    def _shown(self, service: ServiceObject) -> object:
        """What the status of a model shows of its registry; compared, never read."""
        registry = self._registry(service)
        if registry is None or not registry.is_synced:
            return registry is None
        record = registry.state.models.get(service.name)
        if record is None:
            return None
        holders = registry.state.holders(record.serving.key).values()
        canaries = registry.canaries.of(service.name)
        return (
            record,
            count_copies(holders) if holders else None,
            canaries and [(each.percent, registry.state.models[each.model]) for each in canaries],
            registry.state.has_server,
            self.kserve_problem,
        )

    # Unloading

    async def _unload(self, service: ServiceObject) -> float | None:
        """Delete a model from the registry; remove the finalizer once no pod holds it."""
        known = self._of(service)
        known.deleted_s = since_s = known.deleted_s or time.monotonic()
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
        known.deleted_s = None
        await withdraw(self._api, service, WITHDRAWN)
        logger.info("model unloaded", extra={"model": str(service.name)})
        return None

    async def _delete_orphans(self) -> None:
        """Delete models whose object is gone or has moved to another pool.

        Models that no object declares stay.
        """
        for pool, registry in self._registries.opened().items():
            if not registry.is_synced:
                continue
            orphans = [
                name
                for name, record in registry.state.models.items()
                if (uid := owner_of(record.spec)) is not None
                and not self._is_declared(rolled_out_of(record.spec) or name, uid, pool)
            ]
            if orphans:
                await registry.client.delete_models(orphans)
                logger.info(
                    "orphaned models deleted", extra={"models": [str(name) for name in orphans]}
                )

    def _is_declared(self, name: ModelName, uid: str, pool: str) -> bool:
        return any(
            each.uid == uid and (each.is_deleted or (each.role is Role.MODEL and each.pool == pool))
            for kind in (Kind.SERVICE, Kind.MODEL)
            if (each := self._objects.get(Key(kind, name))) is not None
        )

    async def _post_event(
        self, service: ServiceObject, reason: str, message: str, *, is_warning: bool = True
    ) -> None:
        known = self._of(service)
        if known.last_event == (reason, message):
            return
        await self._api.post_event(
            service.name,
            service.uid,
            reason=reason,
            message=message,
            is_warning=is_warning,
            kind=service.reference,
        )
        known.last_event = (reason, message)


async def withdraw(api: ClusterApi, service: ServiceObject, message: str) -> None:
    """Remove the finalizer; of an object that stays also its components, and say so in its status.

    And KServe's, which KServe sets again if there is a transformer. Raises Changed, Gone.
    """
    for component in () if service.is_deleted else service.status.get("components", {}):
        with suppress(Denied):  # the namespace may have taken the right back
            for unwanted in removed_objects(service, component) if component in COMPONENTS else ():
                await api.delete_owned(unwanted)
    if service.has_finalizer:
        kept = [each for each in service.finalizers if each not in (FINALIZER, KSERVE_FINALIZER)]
        service = await api.set_finalizers(service, kept)
    if not service.is_deleted and service.was_model:
        await api.write_status(service, withdrawn_status(service, message, _now()))


def _canaries(registry: PoolRegistry, name: ModelName) -> list[tuple[ModelSpec, int]]:
    records, canaries = registry.state.models, registry.canaries.of(name)
    return [(records[each.model].serving, each.percent) for each in canaries]


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
