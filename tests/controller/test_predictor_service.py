"""The Service `NAME-predictor`; the API server is a small one over real HTTP."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from controller.api import Changed, ClusterApi, ClusterUnreachable
from controller.resources import ServiceObject, read_service
from tests.controller.objects import service

GATEWAY = "gateway.pilotlight.svc.cluster.local"
MODEL: ServiceObject = read_service(service())


@dataclass
class ApiServer:
    """Keeps Services by name, and the patches of statuses."""

    services: dict[str, dict[str, Any]] = field(default_factory=dict)
    status: int = 0
    """In place of every answer, if it is not 0."""
    patches: list[list[dict[str, Any]]] = field(default_factory=list)

    async def create(self, request: web.Request) -> web.Response:
        if self.status:
            return web.json_response({"message": "refused"}, status=self.status)
        made = await request.json()
        name = made["metadata"]["name"]
        if name in self.services:
            return web.json_response({"message": "exists"}, status=409)
        self.services[name] = made
        return web.json_response(made, status=201)

    async def read(self, request: web.Request) -> web.Response:
        return web.json_response(self.services[request.match_info["name"]])

    async def patch(self, request: web.Request) -> web.Response:
        self.patches.append(await request.json())
        return web.json_response(service(), status=self.status or 200)


@pytest.fixture
async def stage() -> AsyncIterator[tuple[ApiServer, ClusterApi]]:
    server, app = ApiServer(), web.Application()
    app.router.add_post("/api/v1/namespaces/team/services", server.create)
    app.router.add_get("/api/v1/namespaces/team/services/{name}", server.read)
    path = "/apis/serving.kserve.io/v1beta1/namespaces/team/inferenceservices/{name}/status"
    app.router.add_patch(path, server.patch)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    configuration = client.Configuration(host=f"http://{host}:{port}")
    async with client.ApiClient(configuration) as connection:
        yield server, ClusterApi(connection, component="controller", instance="one")
    await runner.cleanup()


async def test_it_is_another_name_of_the_gateway_and_goes_with_its_model(
    stage: tuple[ApiServer, ClusterApi],
) -> None:
    server, api = stage
    assert await api.make_predictor_service(MODEL, GATEWAY) == ""
    made = server.services["translate-predictor"]
    assert made["spec"] == {"type": "ExternalName", "externalName": GATEWAY}
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == (
        "InferenceService",
        "translate",
        MODEL.uid,
    )


async def test_it_may_be_there_already(stage: tuple[ApiServer, ClusterApi]) -> None:
    _, api = stage
    await api.make_predictor_service(MODEL, GATEWAY)
    assert await api.make_predictor_service(MODEL, GATEWAY) == ""


async def test_another_service_of_that_name_is_left_alone(
    stage: tuple[ApiServer, ClusterApi],
) -> None:
    server, api = stage
    other = {"metadata": {"name": "translate-predictor"}, "spec": {"clusterIP": "10.0.0.1"}}
    server.services["translate-predictor"] = other
    problem = await api.make_predictor_service(MODEL, GATEWAY)
    assert problem == (
        "Service translate-predictor exists and is not that of this InferenceService"
    )
    assert server.services["translate-predictor"] == other


async def test_a_missing_right_is_said_and_an_outage_is_tried_again(
    stage: tuple[ApiServer, ClusterApi],
) -> None:
    server, api = stage
    server.status = 403
    assert "could not make the Service" in await api.make_predictor_service(MODEL, GATEWAY)
    server.status = 500
    with pytest.raises(ClusterUnreachable):
        await api.make_predictor_service(MODEL, GATEWAY)


async def test_a_shared_status_is_written_to_the_version_that_was_read(
    stage: tuple[ApiServer, ClusterApi],
) -> None:
    server, api = stage
    await api.write_status(MODEL, {}, is_shared=True)
    await api.write_status(MODEL, {})
    tested = [
        {each["path"]: each["value"] for each in patch if each["op"] == "test"}
        for patch in server.patches
    ]
    version = {"/metadata/resourceVersion": MODEL.resource_version}
    assert tested == [{"/metadata/uid": MODEL.uid, **version}, {"/metadata/uid": MODEL.uid}]
    server.status = 422
    with pytest.raises(Changed):
        await api.write_status(MODEL, {}, is_shared=True)
