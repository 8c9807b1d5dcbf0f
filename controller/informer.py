"""Keeps the local copy equal to the cluster: each kind is listed, then watched from its list on.

As client-go's reflector does: a list is applied as a whole, and no change after it is missed. After
each error, and every five minutes, the kind is listed again; the last copy stays meanwhile.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson
from kubernetes.aio import client

from controller.api import (
    FAILURES,
    LIST_TIMEOUT_S,
    ClusterUnreachable,
    Denied,
    Gone,
    KubernetesError,
    api_errors,
    open_response,
    path_of,
)
from controller.objects import ClusterObjects
from controller.resources import (
    POOL,
    TENANT_OF,
    ClusterObject,
    Kind,
    read_application_object,
    read_deployment,
    read_graph_object,
    read_model,
    read_pod,
    read_service,
    read_tenant,
)

logger = logging.getLogger(__name__)

RELIST_INTERVAL_S: Final = 300.0
RETRY_S: Final = 2.0
SILENCE_S: Final = 150.0
"""The API server sends a bookmark every minute: a watch without one has lost its connection."""
PAGE_OBJECTS: Final = 500
_READERS: Final[Mapping[Kind, Callable[[Mapping[str, Any]], ClusterObject]]] = {
    Kind.SERVICE: read_service,
    Kind.MODEL: read_model,
    Kind.DEPLOYMENT: read_deployment,
    Kind.POD: read_pod,
    Kind.APPLICATION: read_application_object,
    Kind.GRAPH: read_graph_object,
    Kind.TENANT: read_tenant,
}
_OPTIONAL: Final = {Kind.SERVICE, Kind.MODEL, Kind.APPLICATION, Kind.GRAPH}
"""Kinds that need not be installed; without KServe pools are Deployments."""
_LABELLED: Final = {Kind.POD: POOL, Kind.DEPLOYMENT: POOL, Kind.TENANT: TENANT_OF}
"""Kinds of which only those with a label are read, where pools are."""
ABSENT_S: Final = 10.0
"""How long an optional kind must be missing to count as not installed: the API server does not know
a kind while its definition is replaced. Where objects of it are known: `RELIST_INTERVAL_S`."""
ABSENT_POLL_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Source:
    """The objects of one kind, in one namespace or (empty) in all."""

    kind: Kind
    namespace: str


class Informer:
    """The only writer of `ClusterObjects`."""

    def __init__(
        self,
        api: client.ApiClient,
        objects: ClusterObjects,
        namespaces: Sequence[str] = (),
        pool_namespaces: Collection[str] = ("",),
    ) -> None:
        """`namespaces`: those to watch; empty: all. `pool_namespaces`: those of pools."""
        self._api = api
        self._objects = objects
        self._sources = [
            _Source(kind, each)
            for kind in _READERS
            for each in (pool_namespaces if kind in _LABELLED else namespaces or [""])
        ]
        self._unlisted = set(self._sources)
        self._missing_since_s: dict[_Source, float] = {}
        self.listed = asyncio.Event()
        """Set once every kind has been listed: before, what is missing may exist."""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for source in self._sources:
                tasks.create_task(self._follow(source))

    async def _follow(self, source: _Source) -> None:
        is_failing = False
        while True:
            try:
                version = await self._list(source)
                self._unlisted.discard(source)
                if not self._unlisted:
                    self.listed.set()
                is_failing = False
                await self._watch(source, version)
            except KubernetesError as error:
                if not isinstance(error, Gone):
                    self._missing_since_s.pop(source, None)  # nothing is known of the time since
                FAILURES.labels(cause=type(error).__name__).inc()
                if not is_failing:
                    extra = {"what": source.kind.value, "namespace": source.namespace}
                    logger.warning("not watched; retrying", extra=extra, exc_info=error)
                is_failing = True
                await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))

    async def _list(self, source: _Source) -> str:
        """Apply a full list, read in pages; returns its version, empty: not installed."""
        listed: list[ClusterObject] = []
        options = {"limit": str(PAGE_OBJECTS)}
        read = _READERS[source.kind]
        try:
            while True:
                with api_errors("list", source.kind):
                    response = await self._get(source, LIST_TIMEOUT_S, **options)
                    page = orjson.loads(await response.read())
                listed += filter(self._objects.concerns_us, map(read, page["items"]))
                if not (following := page["metadata"].get("continue")):
                    break
                options["continue"] = following
        except (Gone, Denied) as error:
            # Deployments of a namespace whose pools are InferenceServices may be out of reach.
            is_denied = isinstance(error, Denied) and source.kind is Kind.DEPLOYMENT
            is_gone = isinstance(error, Gone) and source.kind in _OPTIONAL
            if not is_denied and not (is_gone and self._is_absent(source)):
                raise
            self._objects.replace(source.kind, [], source.namespace)
            return ""
        self._missing_since_s.pop(source, None)
        self._objects.replace(source.kind, listed, source.namespace)
        return str(page["metadata"]["resourceVersion"])

    def _is_absent(self, source: _Source) -> bool:
        """Whether a kind is missing for so long that its objects are gone."""
        since_s = self._missing_since_s.setdefault(source, time.monotonic())
        patience_s = RELIST_INTERVAL_S if self._objects.has_any(source.kind) else ABSENT_S
        return time.monotonic() - since_s >= patience_s

    async def _watch(self, source: _Source, version: str) -> None:
        """Apply changes from a version on, until it is time for the next list."""
        duration_s = RELIST_INTERVAL_S * random.uniform(0.8, 1.2)
        if not version:
            await asyncio.sleep(ABSENT_POLL_S)
            return
        began_s = time.monotonic()
        with api_errors("watch", source.kind):
            response = await self._get(
                source,
                duration_s + SILENCE_S,
                watch="true",
                allowWatchBookmarks="true",
                resourceVersion=version,
                timeoutSeconds=str(round(duration_s)),
            )
            try:
                async for event in _events(response):
                    self._apply(source, event)
            finally:
                response.close()
        if time.monotonic() - began_s < RETRY_S:
            raise ClusterUnreachable(f"the watch of {source.kind} ended at once")

    def _apply(self, source: _Source, event: dict[str, Any]) -> None:
        match event["type"]:
            case "ADDED" | "MODIFIED" | "DELETED":
                found = _READERS[source.kind](event["object"])
                self._objects.update(found, is_removed=event["type"] == "DELETED")
            case "ERROR":
                status = event["object"]
                raise ClusterUnreachable(
                    f"the watch of {source.kind} ended with {status.get('code')}: "
                    f"{status.get('message')}"
                )

    async def _get(self, source: _Source, timeout_s: float, **query: str) -> aiohttp.ClientResponse:
        """The open response; raises ApiException."""
        if source.kind in _LABELLED:
            query["labelSelector"] = _LABELLED[source.kind]
        path = path_of(source.kind, source.namespace)
        return await open_response(self._api, "GET", path, {}, query, timeout_s=timeout_s)


async def _events(response: Any) -> AsyncIterator[dict[str, Any]]:
    """The events of a watch, one a line of any length."""
    rest = b""
    while True:
        async with asyncio.timeout(SILENCE_S):
            chunk = await response.content.readany()
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield orjson.loads(line)
