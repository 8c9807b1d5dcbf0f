"""Reconciles InferenceGraphs with the workflows in the registries of their pools.

Level-triggered: it acts on the current state. A graph whose object is gone, has mistakes or has
moved to another pool is deleted from the registry; workflows that no object declares stay.
Mistakes are warning events of the object, whose status KServe writes.
"""

import logging
from collections.abc import Mapping
from typing import Any

from controller.api import ClusterApi
from controller.objects import ClusterObjects
from controller.pools import PoolRegistries
from controller.resources import GraphObject
from registry.domain.model import ModelName
from registry.errors import InvalidModel
from registry.inference_service.graph_reader import API_VERSION, KIND
from registry.redis.workflow_log import WorkflowLog

Definitions = Mapping[ModelName, Mapping[str, Any]]


logger = logging.getLogger(__name__)

REFUSED_RETRY_S = 1.0


class GraphReconciler:
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
        pool = self._objects.pool(graph.pool)
        if pool is None:
            return (f"there is no pool {graph.pool!r}",)
        namespace = graph.name.namespace
        if pool.rules is None or not pool.rules.admits(namespace):
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
