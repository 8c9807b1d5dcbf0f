"""Reconciles all InferenceApplications and InferenceGraphs with the registries of their pools.

Level-triggered: it acts on the current state. What an object declared that is gone, or has moved to
another pool, is deleted from the registry; what no object declares stays.
"""

import datetime
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from controller.api import STATUS_WRITES, Changed, ClusterApi, Denied, Gone
from controller.objects import ClusterObjects
from controller.pools import PoolRegistries, PoolRegistry
from controller.resources import ApplicationObject, GraphObject
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec
from registry.errors import InvalidModel
from registry.inference_service.graph_reader import API_VERSION, KIND
from registry.redis.workflow_log import WorkflowLog
from variants.application import named_variants

logger = logging.getLogger(__name__)


class ApplicationReconciler:
    """InferenceApplications, and their status."""

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
        rules, spec = self._objects.rules(application.pool), application.spec
        if spec is None:
            return ()
        namespace = application.name.namespace
        if not rules.admits(namespace):
            return (f"pool {application.pool!r} does not admit namespace {namespace!r}",)
        peek = spec.sneak_peek
        if peek is None or rules.granting_prefix(namespace, peek.uri) is not None:
            return ()
        granted = ", ".join(rules.prefixes_of(namespace)) or "none"
        return (
            f"spec.sneakPeek.uri: namespace {namespace!r} may not have it read in pool "
            f"{application.pool!r} (granted: {granted}), was {peek.uri!r}; its operator may grant "
            "a prefix in the tenant's ConfigMap",
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
            await self._api.write_status(application, status)
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


Definitions = Mapping[ModelName, Mapping[str, Any]]


REFUSED_RETRY_S = 1.0


class GraphReconciler:
    """InferenceGraphs are workflows; mistakes are events: KServe writes the status."""

    def __init__(
        self, api: ClusterApi, objects: ClusterObjects, registries: PoolRegistries
    ) -> None:
        self._api = api
        self._objects = objects
        self._registries = registries
        self._reported: dict[str, tuple[str, ...]] = {}
        """By uid: problems that an event was posted about."""

    async def reconcile_all(self) -> float | None:
        """See `controller.Reconcile`; after an error the next call goes on."""
        wait_s = None
        graphs = [each for each in self._objects.graphs.values() if not each.is_deleted]
        problems = {each.uid: self._problems(each) for each in graphs}
        for pool in self._objects.pools():  # whose own keys may wait behind this one
            self._registries.get(pool)
        for pool, registry in self._registries.opened().items():
            log = WorkflowLog(registry.client)
            served = [each for each in graphs if each.pool == pool and not problems[each.uid]]
            refused = await self._write(log, await log.workflows(), served)
            if refused:  # until the workflow of that name is gone
                wait_s = REFUSED_RETRY_S
            problems |= refused
        for graph in graphs:
            await self._report(graph, problems[graph.uid])
        self._reported = {
            each.uid: self._reported[each.uid] for each in graphs if each.uid in self._reported
        }
        return wait_s

    def _problems(self, graph: GraphObject) -> tuple[str, ...]:
        """Why it is not served: its mistakes, and what the rules of its pool forbid."""
        if graph.problems or not graph.pool:
            return graph.problems
        if not self._objects.has_pool(graph.pool):
            return (f"there is no pool {graph.pool!r}",)
        namespace = graph.name.namespace
        if not self._objects.rules(graph.pool).admits(namespace):
            return (f"pool {graph.pool!r} does not admit namespace {namespace!r}",)
        return ()

    @staticmethod
    async def _write(
        log: WorkflowLog, stored: Definitions, served: list[GraphObject]
    ) -> dict[str, tuple[str, ...]]:
        """Store and delete graphs; by uid, why some could not be stored."""
        problems: dict[str, tuple[str, ...]] = {}
        for graph in served:
            definition = graph.spec.definition() if graph.spec is not None else None
            if definition is None or stored.get(graph.name) == definition:
                continue
            try:
                await log.put_workflow(graph.name, definition)
            except InvalidModel as error:
                problems[graph.uid] = tuple(error.problems)
        wanted = {each.name for each in served}
        for name, known in stored.items():
            if known.get("owner") and name not in wanted:
                await log.delete_workflow(name)
                logger.info("graph deleted", extra={"graph": str(name)})
        return problems

    async def _report(self, graph: GraphObject, problems: tuple[str, ...]) -> None:
        """Post an event about each new set of problems."""
        if not problems:
            self._reported.pop(graph.uid, None)
        elif self._reported.get(graph.uid) != problems:
            await self._api.post_event(
                graph.name,
                graph.uid,
                reason="NotServed",
                message="; ".join(problems),
                is_warning=True,
                kind=(API_VERSION, KIND),
            )
            self._reported[graph.uid] = problems
