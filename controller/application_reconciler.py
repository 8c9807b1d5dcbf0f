"""Reconciles all InferenceApplications with the registries of their pools, and their status.

Level-triggered: it acts on the current state. An application whose object is gone, or has moved to
another pool, is deleted from the registry; those that no object declares stay.
"""

import datetime
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from controller.api import STATUS_WRITES, Changed, ClusterApi, Denied, Gone
from controller.objects import ClusterObjects
from controller.pools import PoolRegistries, PoolRegistry
from controller.resources import ApplicationObject
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelSpec
from registry.errors import InvalidModel
from variants.application import named_variants

logger = logging.getLogger(__name__)


class ApplicationReconciler:
    def __init__(
        self, api: ClusterApi, objects: ClusterObjects, registries: PoolRegistries
    ) -> None:
        self._api = api
        self._objects = objects
        self._registries = registries

    async def reconcile_all(self) -> None:
        """Raises KubernetesError, RegistryError; the next call goes on.

        An object that the API server refuses does not keep the others from being reconciled.
        """
        refused: list[Changed | Denied] = []
        for application in list(self._objects.applications.values()):
            if not application.is_deleted:
                try:
                    await self._reconcile(application)
                except (Changed, Denied) as error:
                    refused.append(error)
        for pool, registry in self._registries.opened().items():
            if registry.is_synced:
                await self._delete_orphans(pool, registry)
        if refused:
            raise refused[0]

    async def _reconcile(self, application: ApplicationObject) -> None:
        if not self._objects.has_pool(application.pool):
            await self._write_status(application, None, application.problems)
            return
        registry = self._registries.get(application.pool)
        if not registry.is_synced:
            return  # the last status stays
        problems = application.problems or self._forbidden(application)
        known = registry.state.applications.get(application.name)
        if problems and known is not None and known.owner == application.uid:
            await registry.client.delete_applications([application.name])
        elif not problems and application.spec is not None and known != application.spec:
            try:
                await registry.client.put_applications([application.spec])
            except InvalidModel as error:
                problems = tuple(error.problems)
        await self._write_status(application, registry, problems)

    def _forbidden(self, application: ApplicationObject) -> tuple[str, ...]:
        """What the rules of its pool forbid."""
        pool, spec = self._objects.pool(application.pool), application.spec
        if pool is None or spec is None:
            return ()
        namespace = application.name.namespace
        if pool.rules is None or not pool.rules.admits(namespace):
            return (f"pool {application.pool!r} does not admit namespace {namespace!r}",)
        peek = spec.sneak_peek
        if peek is None or pool.rules.granting_prefix(namespace, peek.uri) is not None:
            return ()
        granted = ", ".join(pool.rules.prefixes_of(namespace)) or "none"
        return (
            f"spec.sneakPeek.uri: namespace {namespace!r} may not have it read in pool "
            f"{application.pool!r} (granted: {granted}), was {peek.uri!r}; its operator may grant "
            "a prefix in the pool's annotation pilotlight.io/storage-prefixes",
        )

    async def _write_status(
        self, application: ApplicationObject, registry: PoolRegistry | None, problems: Sequence[str]
    ) -> None:
        state = None if registry is None else registry.state
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = application_status(application, state, problems, now)
        if status == application.status:
            return
        try:
            await self._api.write_application_status(application, status)
        except Gone:
            return  # its removal is on the way
        STATUS_WRITES.inc()

    async def _delete_orphans(self, pool: str, registry: PoolRegistry) -> None:
        orphans = [
            name
            for name, spec in registry.state.applications.items()
            if spec.owner and not self._is_declared(spec.owner, pool)
        ]
        if orphans:
            await registry.client.delete_applications(orphans)
            logger.info("applications deleted", extra={"applications": list(map(str, orphans))})

    def _is_declared(self, uid: str, pool: str) -> bool:
        return any(
            each.uid == uid and each.pool == pool and not each.is_deleted
            for each in self._objects.applications.values()
        )


def application_status(
    application: ApplicationObject, state: ClusterState | None, problems: Sequence[str], now: str
) -> dict[str, Any]:
    """`state` None: the pool is unknown; `problems`: why the application is not served.

    The times of unchanged conditions stay. `now`: RFC 3339.
    """
    variants: list[tuple[ModelSpec, str | None]] = []
    if problems:
        ready = ("False", "Invalid", "; ".join(problems))
    elif state is None or application.spec is None:
        ready = ("False", "NoPool", f"there is no pool {application.pool!r}")
    else:
        variants = named_variants(application.spec, state)
        ready = _ready(application, variants)
    conditions: Sequence[Mapping[str, str]] = application.status.get("conditions") or ()
    before = next((each for each in conditions if each["type"] == "Ready"), {"status": ready[0]})
    changed = before.get("lastTransitionTime", now) if before["status"] == ready[0] else now
    return {
        "observedGeneration": application.generation,
        "conditions": [
            {
                "type": "Ready",
                "status": ready[0],
                "reason": ready[1],
                "message": ready[2],
                "lastTransitionTime": changed,
            }
        ],
        "variants": [
            {"name": spec.name.name, "usable": problem is None, "message": problem or ""}
            for spec, problem in variants
        ],
    }


def _ready(
    application: ApplicationObject, variants: Sequence[tuple[ModelSpec, str | None]]
) -> tuple[str, str, str]:
    """Status, reason and message."""
    usable = [spec.name.name for spec, problem in variants if problem is None]
    left_out = [f"{spec.name.name}: {problem}" for spec, problem in variants if problem is not None]
    if usable:
        return "True", "VariantsUsable", "; ".join([f"variants: {', '.join(usable)}", *left_out])
    if left_out:
        return "False", "NoUsableVariant", "; ".join(left_out)
    text = "no InferenceService of the namespace has the annotation "
    return "False", "NoVariants", f"{text}pilotlight.io/application: {application.name.name}"
