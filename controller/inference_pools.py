"""InferencePools of the pools and HTTPRoutes to them, for gateways that ask the endpoint picker.

The oldest pool gets what the URLs of all models begin with; each model of another pool has a route
of its own, which Gateway API prefers, as it is more specific. The gateways write the status.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from kubernetes.aio import client

from controller.api import ClusterApi, Denied, Gone, KubernetesError, read_json
from controller.component_objects import Document, owned_metadata
from controller.objects import ClusterObjects
from controller.resources import POOL, Role, ServiceObject
from controller.settings import ControllerSettings
from registry.domain.model import ModelName

logger = logging.getLogger(__name__)

_INFERENCE, _ROUTES = "inference.networking.k8s.io", "gateway.networking.k8s.io"
_VERSIONS: Final = {"InferencePool": f"{_INFERENCE}/v1", "HTTPRoute": f"{_ROUTES}/v1"}
_MADE: Final = {"app.kubernetes.io/managed-by": "pilotlight-controller"}
_PORT: Final = 8080
"""Of the pods of all pools."""
_REQUEST_TIMEOUT: Final = "310s"
"""None of the gateway's own: the picker ends a request after 300 s."""
LIST_INTERVAL_S: Final = 300.0
"""Until objects are compared with those of the cluster again, and missing kinds looked for."""


def inference_objects(
    pool: ServiceObject, models: Sequence[ModelName] | None, settings: ControllerSettings
) -> list[Document]:
    """The InferencePool first. `models`: with a route each; None: one for all."""
    service, _, port = settings.picker_service.partition(":")
    picker = {"name": service, "port": {"number": int(port)}, "failureMode": "FailClose"}
    spec = {
        "selector": {"matchLabels": {POOL: pool.pool}},
        "targetPorts": [{"number": _PORT}],
        "endpointPickerRef": picker,
    }
    objects = [_object(pool, "InferencePool", pool.name.name, spec)]
    if settings.ingress_gateways:
        objects += [
            _object(pool, "HTTPRoute", name, _route(pool, settings, *place))
            for name, place in _places(pool, models, settings)
        ]
    return objects


def _object(pool: ServiceObject, kind: str, name: str, spec: Document) -> Document:
    metadata = owned_metadata(pool, name, {"labels": _MADE})
    return {"apiVersion": _VERSIONS[kind], "kind": kind, "metadata": metadata, "spec": spec}


def _places(
    pool: ServiceObject, models: Sequence[ModelName] | None, settings: ControllerSettings
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Names of routes, and their hosts (empty: all) and paths."""
    host, path = _host(settings), urlsplit(settings.url).path
    for model in models or ():
        names = {"namespace": model.namespace, "name": model.name}
        name = f"{model.name}.{model.namespace}.{pool.name.name}"
        yield name, (host.format(**names), path.format(**names))
    if models is None:
        _, brace, domain = host.rpartition("}")
        wild = f"*.{domain.partition('.')[2]}" if brace else domain
        yield pool.name.name, (wild.removesuffix("*."), path.partition("{")[0])


def _host(settings: ControllerSettings) -> str:
    """Of the models' URLs; empty if it is the gateway's inside the cluster, or an address."""
    url, inside = urlsplit(settings.url), urlsplit(settings.address)
    host = url.hostname or ""
    is_address = ":" in host or host.replace(".", "").isdigit()
    return "" if is_address or url.netloc == inside.netloc else host


def _route(pool: ServiceObject, settings: ControllerSettings, host: str, path: str) -> Document:
    parents = [each.partition("/") for each in settings.ingress_gateways]
    backend = {"group": _INFERENCE, "kind": "InferencePool", "name": pool.name.name}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": path.rstrip("/") or "/"}}],
        "backendRefs": [backend],
        "timeouts": {"request": _REQUEST_TIMEOUT},
    }
    return {
        "parentRefs": [
            {"group": _ROUTES, "kind": "Gateway", "namespace": namespace, "name": name}
            for namespace, _, name in parents
        ],
        "hostnames": [host] if host else [],
        "rules": [rule],
    }


def covers(found: Any, wanted: Any) -> bool:
    """Whether an object has what is wanted, beside its defaults and what others have set."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and covers(found[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(covers, found, wanted))
    return bool(found == wanted)


class InferencePoolReconciler:
    """Makes the objects where their kinds are installed. Used by one task only."""

    def __init__(
        self,
        settings: ControllerSettings,
        api: client.ApiClient,
        writer: ClusterApi,
        objects: ClusterObjects,
    ) -> None:
        self._settings = settings
        self._api = api
        self._writer = writer
        self._objects = objects
        self._found: dict[tuple[str, str], Document] = {}
        """Ours, by kind and name, as they were listed or written last."""
        self._kinds: list[str] = []
        """Those that are installed."""
        self._list_at_s = 0.0

    async def reconcile_all(self) -> float | None:
        """See `controller.Reconcile`. One object that is refused does not stop the others.

        Without a picker what an earlier controller made is deleted.
        """
        if time.monotonic() >= self._list_at_s:
            await self._list()
        wanted = {
            (each["kind"], each["metadata"]["name"]): each
            for each in self._wanted()
            if each["kind"] in self._kinds
        }
        problem: KubernetesError | None = None
        for key in wanted | self._found:
            try:
                await self._make(key, wanted.get(key))
            except KubernetesError as error:
                problem = error
        if problem is not None:
            raise problem
        return max(0.0, self._list_at_s - time.monotonic())

    async def _make(self, key: tuple[str, str], wanted: Document | None) -> None:
        if wanted is None:
            await self._writer.delete_owned(self._found[key])
            del self._found[key]
        elif not covers(self._found.get(key), wanted):
            await self._writer.apply_owned(wanted)
            self._found[key] = wanted
            logger.info("made or changed", extra={"what": key[0], "object": key[1]})

    def _wanted(self) -> Iterator[Document]:
        """Of pools beside the picker's Service: an InferencePool refers to its namespace only."""
        if not self._settings.picker_service:
            return
        found = filter(None, map(self._objects.pool, self._objects.pools()))
        here = [each for each in found if each.name.namespace == self._settings.namespace]
        for number, pool in enumerate(sorted(here, key=lambda each: (each.created, each.name))):
            models = self._models(pool.pool) if number else None
            yield from inference_objects(pool, models, self._settings)

    def _models(self, pool: str) -> list[ModelName]:
        return sorted(
            each.name
            for each in self._objects.declared()
            if each.role is Role.MODEL and each.pool == pool and not each.is_deleted
        )

    async def _list(self) -> None:
        self._found, self._kinds = {}, []
        unread = () if self._settings.picker_service else (Denied,)  # by a Role without the kinds
        for kind, version in _VERSIONS.items():
            path = f"/apis/{version}/namespaces/{self._settings.namespace}/{kind.lower()}s"
            [(label, value)] = _MADE.items()
            with suppress(Gone, *unread):  # the kind is not installed
                listed = await read_json(self._api, path, labelSelector=f"{label}={value}")
                self._kinds.append(kind)
                for each in listed["items"]:
                    if each["metadata"].get("ownerReferences"):
                        head = {"apiVersion": version, "kind": kind}
                        self._found[kind, each["metadata"]["name"]] = {**head, **each}
        self._list_at_s = time.monotonic() + LIST_INTERVAL_S
