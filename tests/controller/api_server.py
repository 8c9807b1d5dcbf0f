"""A small API server over real HTTP: InferenceServices, their watch, status and events, Leases."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from kubernetes.aio import client

_KINDS = {
    "inferenceservices": "InferenceService",
    "models": "Model",
    "deployments": "Deployment",
    "configmaps": "ConfigMap",
}
_FOLDERS = {"Model": "models/", "Deployment": "deployments/", "ConfigMap": "configmaps/"}


@dataclass
class ApiServer:
    """Objects by path; every change is sent to all watches."""

    version: int = 10
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """InferenceServices by `namespace/name`, Models by `models/namespace/name`."""
    owned: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What was made of components, by path."""
    missing: frozenset[str] = frozenset()
    """Plurals of kinds that are not installed."""
    graphs: list[dict[str, Any]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    """Reasons of posted events."""
    lists: list[str] = field(default_factory=list)
    """Paths of lists."""
    writes: list[tuple[str, str, int]] = field(default_factory=list)
    """Who, what and status of each patch."""
    documents: dict[str, Any] = field(default_factory=dict)
    """Of the issuer of tokens, by path."""
    config_maps: dict[str, dict[str, Any]] = field(default_factory=dict)
    lease: dict[str, Any] | None = None
    fault: Callable[[web.Request], int | None] = lambda _: None
    """A status in place of the answer to a request; None: answer it."""
    before_write: Callable[[web.Request], Any] | None = None
    """Called, and awaited, before a patch is looked at."""
    _watches: list[tuple[asyncio.Queue[bytes], str]] = field(default_factory=list)
    """With the kind that each watches."""
    _sent: list[tuple[int, str | None, bytes]] = field(default_factory=list)
    """Version, kind and text of each event."""

    # What the test does

    def put(self, document: dict[str, Any]) -> None:
        metadata = document["metadata"]
        path = f"{metadata['namespace']}/{metadata['name']}"
        path = f"{_FOLDERS.get(document['kind'], '')}{path}"
        self._store(path, document, "MODIFIED" if path in self.objects else "ADDED")

    def delete(self, path: str, *, is_sent: bool = True) -> None:
        self.version += 1
        gone = self.objects.pop(path)
        gone["metadata"]["resourceVersion"] = str(self.version)
        if is_sent:
            self._send({"type": "DELETED", "object": gone})

    def expire_watches(self) -> None:
        """Tell all watches that their version is too old; the connections stay open."""
        self._send(
            {"type": "ERROR", "object": {"code": 410, "message": "too old", "reason": "Expired"}}
        )

    # What the API server does

    def _store(self, path: str, document: dict[str, Any], kind: str) -> None:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = document
        self._send({"type": kind, "object": document})

    def _send(self, event: dict[str, Any]) -> None:
        kind = event["object"].get("kind")
        line = json.dumps(event).encode() + b"\n"
        self._sent.append((self.version, kind, line))
        for each, watched in self._watches:
            if kind in (watched, None):
                each.put_nowait(line)

    async def get(self, request: web.Request) -> web.StreamResponse:
        if (status := self.fault(request)) is not None:
            return web.json_response({"message": "fault"}, status=status)
        plural = request.path.rpartition("/")[2]
        if plural in self.missing:
            return web.json_response({"message": "not installed"}, status=404)
        if request.path in self.documents:
            return web.json_response(self.documents[request.path])
        kind = _KINDS.get(plural)
        if "watch" in request.query:
            return await self._watch(request, kind)
        self.lists.append(request.path)
        graphs = self.graphs if plural == "inferencegraphs" else []
        items = [each for each in self.objects.values() if each["kind"] == kind] or graphs
        return web.json_response(
            {"items": items, "metadata": {"resourceVersion": str(self.version)}}
        )

    async def _watch(self, request: web.Request, kind: str | None) -> web.StreamResponse:
        response, sent = web.StreamResponse(), asyncio.Queue[bytes]()
        if kind is not None:
            since = int(request.query["resourceVersion"])
            for version, each, line in self._sent:
                if version > since and each in (kind, None):
                    sent.put_nowait(line)
            self._watches.append((sent, kind))
        await response.prepare(request)
        try:
            while True:
                await response.write(await sent.get())
        finally:
            if kind is not None:
                self._watches.remove((sent, kind))

    async def patch(self, request: web.Request) -> web.Response:
        document = await request.json()
        if self.before_write is not None:
            await self.before_write(request)
        status = self.fault(request)
        folder = "models/" if request.match_info["kind"] == "models" else ""
        path = f"{folder}{request.match_info['ns']}/{request.match_info['name']}"
        known = self.objects.get(path)
        if status is None:
            status = 404 if known is None else self._apply(path, known, document)
        self.writes.append((request.headers["user-agent"], request.path.rpartition("/")[2], status))
        return web.json_response(self.objects.get(path) or known or {}, status=status)

    def _apply(self, path: str, known: dict[str, Any], patch: Any) -> int:
        if isinstance(patch, list):
            for operation in patch:
                key = operation["path"].rpartition("/")[2]
                if operation["op"] == "test" and known["metadata"][key] != operation["value"]:
                    return 422
            self._store(path, {**known, "status": patch[-1]["value"]}, "MODIFIED")
            return 200
        metadata = patch["metadata"]
        if metadata.get("resourceVersion") != known["metadata"]["resourceVersion"]:
            return 409
        changed = {**known, "metadata": {**known["metadata"], **metadata}}
        if "deletionTimestamp" in changed["metadata"] and not metadata["finalizers"]:
            self.objects[path] = changed
            self.delete(path)
            self.objects.pop(path, None)
        else:
            self._store(path, changed, "MODIFIED")
        return 200

    async def serve_owned(self, request: web.Request) -> web.Response:
        if (status := self.fault(request)) is not None:
            return web.json_response({"message": "fault"}, status=status)
        known = self.owned.get(request.path)
        if request.method == "PATCH":
            applied = json.loads(await request.text())
            self.owned[request.path] = {"status": (known or {}).get("status", {}), **applied}
        elif request.method == "DELETE":
            self.owned.pop(request.path, None)
        found = self.owned.get(request.path) or known
        return web.json_response(found or {}, status=404 if found is None else 200)

    async def post_event(self, request: web.Request) -> web.Response:
        if (status := self.fault(request)) is not None:
            return web.json_response({"message": "fault"}, status=status)
        event = await request.json()
        self.events.append(event["reason"])
        return web.json_response(event, status=201)

    async def config_map(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and "name" not in request.match_info:
            return await self.get(request)
        if request.method == "GET":
            known = self.config_maps.get(request.match_info["name"])
            return web.json_response(known or {}, status=200 if known else 404)
        document = await request.json()
        known = self.config_maps.get(document["metadata"]["name"])
        version = document["metadata"].get("resourceVersion")
        if version != (known and known["metadata"]["resourceVersion"]):
            return web.json_response({"message": "conflict"}, status=409)
        for name, text in document.pop("stringData", {}).items():
            document.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self.config_maps[document["metadata"]["name"]] = document
        return web.json_response(document, status=200 if known else 201)

    async def write_lease(self, request: web.Request) -> web.Response:
        if (status := self.fault(request)) is not None:
            return web.json_response({"message": "fault"}, status=status)
        if request.method == "GET":
            return web.json_response(self.lease or {}, status=200 if self.lease else 404)
        lease = await request.json()
        if request.method == "PATCH":
            assert self.lease is not None
            lease = {**self.lease, "spec": {**self.lease["spec"], **lease["spec"]}}
        elif (known := self.lease) is not None:
            version = lease["metadata"].get("resourceVersion")
            if version != known["metadata"]["resourceVersion"]:
                return web.json_response({"message": "conflict"}, status=409)
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease = lease
        return web.json_response(lease)


@contextlib.asynccontextmanager
async def running(server: ApiServer) -> AsyncIterator[str]:
    """The URL of the server."""
    routes, resource = (
        web.Application(client_max_size=1 << 24),
        "/apis/{g}/{v}/namespaces/{ns}/{kind}/{name}",
    )
    leases = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
    for path in (leases, leases + "/{name}"):
        routes.router.add_route("*", path, server.write_lease)
    config_maps = "/api/v1/namespaces/{ns}/{_:configmaps|secrets}"
    for path in (config_maps, config_maps + "/{name}"):
        routes.router.add_route("*", path, server.config_map)
    for path in (
        "/apis/apps/v1/namespaces/{ns}/deployments/{name}",
        "/apis/autoscaling/v2/namespaces/{ns}/horizontalpodautoscalers/{name}",
        "/api/v1/namespaces/{ns}/services/{name}",
    ):
        routes.router.add_route("*", path, server.serve_owned)
    routes.router.add_patch(resource, server.patch)
    routes.router.add_patch(resource + "/status", server.patch)
    routes.router.add_post("/api/v1/namespaces/{ns}/events", server.post_event)
    routes.router.add_get("/{path:.*}", server.get)
    runner = web.AppRunner(routes, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def connect(url: str, agent: str = "controller") -> client.ApiClient:
    found = client.ApiClient(client.Configuration(host=url))
    found.user_agent = agent
    return found
