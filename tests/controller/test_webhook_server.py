import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from aiohttp import web
from kubernetes.aio import client as kubernetes

from controller.admission import validate
from controller.settings import ControllerSettings
from controller.webhook_server import MUTATE_PATH, VALIDATE_PATH, WebhookSetup, admission_app
from tests.controller.objects import service


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=admission_app(validate))
    async with httpx.AsyncClient(
        transport=transport, base_url="https://webhook", timeout=60
    ) as made:
        yield made


async def test_serves_reviews(client: httpx.AsyncClient) -> None:
    review = {"request": {"uid": "r-1", "namespace": "team", "object": service()}}
    for path in (VALIDATE_PATH, MUTATE_PATH):
        answer = await client.post(path, json=review)
        assert answer.status_code == 200
        assert answer.json()["response"] == {"uid": "r-1", "allowed": True}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"", 400, id="empty"),
        pytest.param(b"[1]", 400, id="no-object"),
        pytest.param(b"{}", 400, id="no-request"),
        pytest.param(b'{"request": 3}', 400, id="request-is-a-number"),
        pytest.param(b'{"request": {"uid": "r", "object": {"metadata": 3}}}', 400, id="metadata"),
        pytest.param(
            b'{"request": {"uid": "r", "object": {"apiVersion": "serving.kserve.io/v1beta1",'
            b' "kind": "InferenceService",'
            b' "metadata": {"annotations": {"pilotlight.io/pool": "p"}, "name": '
            + b"[" * 1000
            + b"]" * 1000
            + b'}, "spec": {"predictor": {"model": {"modelFormat": {"name": "x"}}}}}}}',
            400,
            id="nested-too-deeply",
        ),
        pytest.param(b" " * (9 << 20), 413, id="too-long"),
    ],
)
async def test_rejects_bodies_that_are_not_reviews(
    client: httpx.AsyncClient, body: bytes, status: int
) -> None:
    answer = await client.post(VALIDATE_PATH, content=body)
    assert answer.status_code == status
    assert answer.json()["error"]


API_SERVICE = "v1beta1.external.metrics.k8s.io"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("service_name", "is_ours"),
    [
        pytest.param("pilotlight-webhook", True, id="ours"),
        pytest.param("keda-operator-metrics-apiserver", False, id="of-keda"),
        pytest.param("", False, id="missing"),
    ],
)
async def test_webhooks_are_served_whoever_has_the_external_metrics(
    service_name: str, is_ours: bool
) -> None:
    patched: dict[str, Any] = {}

    async def serve(request: web.Request) -> web.Response:
        name = request.match_info["path"].rpartition("/")[2]
        if request.method in ("PATCH", "POST"):
            patched[name] = json.loads(await request.text())
            return web.json_response({})
        if name == "pilotlight-webhook" or (name == API_SERVICE and not service_name):
            return web.json_response({"message": "not found"}, status=404)
        leads = {"service": {"name": service_name or "pilotlight-webhook", "namespace": "p"}}
        if name == API_SERVICE:
            most = {"groupPriorityMinimum": 1, "versionPriority": 1}
            return web.json_response({"spec": {**leads, **most, "caBundle": "dGhlaXJz"}})
        leads["service"]["name"] = "pilotlight-webhook"
        common = {"name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"]}
        return web.json_response({"webhooks": [{**common, "clientConfig": leads}]})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    api = kubernetes.ApiClient(kubernetes.Configuration(host=f"http://{host}:{port}"))
    assert (await WebhookSetup(api, ControllerSettings(external_metrics_port=1)).prepare()).key
    assert {"annotations.pilotlight.io", "defaults.pilotlight.io"} <= patched.keys()
    assert (API_SERVICE in patched) is is_ours
    await api.close()
    await runner.cleanup()
