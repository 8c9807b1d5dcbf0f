"""Objects that the controller makes for a model; the API server is a small one over real HTTP."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from controller.api import Changed, ClusterApi, ClusterUnreachable, Denied
from controller.component_objects import predictor_service
from controller.resources import ServiceObject, read_service
from tests.controller.objects import service

GATEWAY = "http://gateway.pilotlight.svc.cluster.local/serving"
MODEL: ServiceObject = read_service(service())
WANTED = predictor_service(MODEL, GATEWAY)
PATH = "/api/v1/namespaces/team/services/translate-predictor"


@dataclass
class ApiServer:
    """Keeps objects by path."""

    objects: dict[str, Any] = field(default_factory=dict)
    status: int = 0
    """In place of every answer, if it is not 0."""
    patches: list[list[dict[str, Any]]] = field(default_factory=list)
    applied: list[dict[str, str]] = field(default_factory=list)
    """Query and type of each server-side apply."""

    async def serve(self, request: web.Request) -> web.Response:
        if self.status:
            return web.json_response({"message": "refused"}, status=self.status)
        if request.method == "PATCH":
            self.applied.append({**request.query, "type": request.headers["content-type"]})
            self.objects[request.path] = json.loads(await request.text())
        if request.path not in self.objects:
            return web.json_response({"message": "not found"}, status=404)
        found = self.objects[request.path]
        if request.method == "DELETE":
            del self.objects[request.path]
        return web.json_response(found)

    async def patch_status(self, request: web.Request) -> web.Response:
        self.patches.append(await request.json())
        return web.json_response(service(), status=self.status or 200)


@pytest.fixture
async def stage() -> AsyncIterator[tuple[ApiServer, ClusterApi]]:
    server, app = ApiServer(), web.Application()
    path = "/apis/serving.kserve.io/v1beta1/namespaces/team/inferenceservices/{name}/status"
    app.router.add_patch(path, server.patch_status)
    app.router.add_route("*", "/{path:.*}", server.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    configuration = client.Configuration(host=f"http://{host}:{port}")
    async with client.ApiClient(configuration) as connection:
        yield server, ClusterApi(connection, component="controller", instance="one")
    await runner.cleanup()


async def test_they_are_applied_and_deleted(stage: tuple[ApiServer, ClusterApi]) -> None:
    server, api = stage
    await api.apply_owned(WANTED)
    await api.apply_owned(WANTED)
    assert server.objects == {PATH: WANTED}
    apply = {"fieldManager": "controller", "force": "true", "type": "application/apply-patch+yaml"}
    assert server.applied == [apply, apply]
    await api.delete_owned(WANTED)
    assert server.objects == {}
    await api.delete_owned(WANTED)


async def test_another_s_object_of_that_name_is_left_alone(
    stage: tuple[ApiServer, ClusterApi],
) -> None:
    server, api = stage
    other = {"metadata": {"name": "translate-predictor"}, "spec": {"clusterIP": "10.0.0.1"}}
    server.objects[PATH] = other
    with pytest.raises(Denied, match="exists and is not that of this InferenceService"):
        await api.apply_owned(WANTED)
    await api.delete_owned(WANTED)
    assert server.objects == {PATH: other}


async def test_a_missing_right_and_an_outage_are_told_apart(
    stage: tuple[ApiServer, ClusterApi],
) -> None:
    server, api = stage
    server.status = 403
    with pytest.raises(Denied, match="Service translate-predictor"):
        await api.apply_owned(WANTED)
    server.status = 500
    with pytest.raises(ClusterUnreachable):
        await api.apply_owned(WANTED)


async def test_a_status_is_written_to_the_object_that_was_read(
    stage: tuple[ApiServer, ClusterApi],
) -> None:
    server, api = stage
    await api.write_status(MODEL, {})
    [patch] = server.patches
    tested = {each["path"]: each["value"] for each in patch if each["op"] == "test"}
    assert tested == {"/metadata/uid": MODEL.uid}
    server.status = 422
    with pytest.raises(Changed):
        await api.write_status(MODEL, {})
