"""The InferencePools and HTTPRoutes of pools; `tests/kubernetes` has them at a real API server."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from controller.api import ClusterApi, Denied
from controller.inference_pools import InferencePoolReconciler, covers, inference_objects
from controller.objects import ClusterObjects
from controller.resources import read_deployment, read_service
from controller.settings import ControllerSettings
from registry.domain.model import ModelName
from tests.controller.objects import service

MODELS = [ModelName("team", "a"), ModelName("other", "b")]


POOL = service(annotations={}, labels={"pilotlight.io/pool": "default"}, name="pool")


def settings(**given: Any) -> ControllerSettings:
    return ControllerSettings(picker_service="pilotlight-gateway:9002", **given)


def made(models: list[ModelName] | None = None, **given: Any) -> list[dict[str, Any]]:
    return inference_objects(read_service(POOL), models, settings(**given))


def places(routes: list[dict[str, Any]]) -> dict[str, tuple[list[str], str]]:
    """Hosts and path by name."""
    return {
        each["metadata"]["name"]: (
            each["spec"]["hostnames"],
            each["spec"]["rules"][0]["matches"][0]["path"]["value"],
        )
        for each in routes
    }


def test_a_pool_selects_its_pods_and_names_the_picker() -> None:
    [found, route] = made()
    assert found["spec"] == {
        "selector": {"matchLabels": {"pilotlight.io/pool": "default"}},
        "targetPorts": [{"number": 8080}],
        "endpointPickerRef": {
            "name": "pilotlight-gateway",
            "port": {"number": 9002},
            "failureMode": "FailClose",
        },
    }
    assert route["spec"]["parentRefs"] == [
        {
            "group": "gateway.networking.k8s.io",
            "kind": "Gateway",
            "namespace": "kserve",
            "name": "kserve-ingress-gateway",
        }
    ]
    assert route["spec"]["rules"][0]["backendRefs"][0]["name"] == found["metadata"]["name"]
    for each in (found, route):
        [owner] = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("InferenceService", "pool")


def test_a_pool_without_kserve_owns_them_too() -> None:
    [found, _] = inference_objects(read_deployment(POOL), None, settings())
    owner = found["metadata"]["ownerReferences"][0]
    assert (owner["apiVersion"], owner["kind"]) == ("apps/v1", "Deployment")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        pytest.param("https://m.example.com/serving/{namespace}/{name}",
                     (["m.example.com"], "/serving"), id="path"),
        pytest.param("http://{name}-{namespace}.example.com", (["*.example.com"], "/"), id="host"),
        pytest.param("http://m-{name}-x.{namespace}.a.b:8080/p", (["*.a.b"], "/p"), id="both"),
        pytest.param("http://{name}", ([], "/"), id="no-domain"),
        pytest.param("http://10.0.0.1/serving/{namespace}/{name}", ([], "/serving"), id="address"),
        pytest.param("http://[fd00::1]/{namespace}/{name}", ([], "/"), id="address-6"),
        pytest.param(ControllerSettings().address, ([], "/serving"), id="inside"),
    ],
)  # fmt: skip
def test_one_route_has_the_beginning_of_all_urls(url: str, place: tuple[list[str], str]) -> None:
    assert places(made(url=url)[1:]) == {"pool": place}


def test_models_of_another_pool_have_routes_of_their_own() -> None:
    assert places(made(MODELS)[1:]) == {
        "a.team.pool": ([], "/serving/team/a"),
        "b.other.pool": ([], "/serving/other/b"),
    }
    by_host = made(MODELS, url="http://{name}-{namespace}.example.com")[1:]
    assert places(by_host) == {
        "a.team.pool": (["a-team.example.com"], "/"),
        "b.other.pool": (["b-other.example.com"], "/"),
    }
    assert len(made([])) == 1


def test_without_a_gateway_there_are_no_routes() -> None:
    assert [each["kind"] for each in made(ingress_gateways=())] == ["InferencePool"]


def test_defaults_and_fields_of_others_are_no_difference() -> None:
    wanted = {"a": {"b": 1}, "c": [{"d": 1}]}
    assert covers({"a": {"b": 1, "x": 2}, "c": [{"d": 1, "e": 3}], "status": {}}, wanted)
    for found in (
        None, {"a": {"b": 1}}, {"a": {"b": 2}, "c": [{"d": 1}]}, {"a": {"b": 1}, "c": [{}]},
        {"a": {"b": 1}, "c": [{"d": 1}, {"d": 1}]}, {"a": {"b": 1}, "c": []},
    ):  # fmt: skip
        assert not covers(found, wanted)


INFERENCE_POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/pilotlight/inferencepools"
ROUTES = "/apis/gateway.networking.k8s.io/v1/namespaces/pilotlight/httproutes"


@dataclass
class ApiServer:
    """Objects by path."""

    kinds: tuple[str, ...] = (INFERENCE_POOLS, ROUTES)
    objects: dict[str, Any] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    is_denied: bool = False

    async def serve(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.path}")
        folder = request.path.rpartition("/")[0]
        if request.path in self.kinds and self.is_denied:
            return web.json_response({"message": "forbidden"}, status=403)
        if request.path in self.kinds:
            assert "managed-by" in request.query["labelSelector"]
            of_kind = [each for path, each in self.objects.items() if path.startswith(request.path)]
            ours = [each for each in of_kind if each["metadata"].get("labels")]
            return web.json_response({"items": ours})
        if request.method == "PATCH" and folder in self.kinds:
            self.objects[request.path] = json.loads(await request.text())
        if request.path not in self.objects:
            return web.json_response({"message": "not found"}, status=404)
        found = self.objects[request.path]
        if request.method == "DELETE":
            del self.objects[request.path]
        return web.json_response(found)

    def names(self) -> set[str]:
        return {path.rpartition("/")[2] for path in self.objects if path.startswith(ROUTES)}


Stage = tuple[ApiServer, ClusterObjects, InferencePoolReconciler]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    server, app, objects = ApiServer(), web.Application(), ClusterObjects()
    app.router.add_route("*", "/{path:.*}", server.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    api = client.ApiClient(client.Configuration(host=f"http://{host}:{port}"))
    writer = ClusterApi(api, component="pilotlight-controller", instance="test")
    yield server, objects, InferencePoolReconciler(settings(), api, writer, objects)
    await api.close()
    await runner.cleanup()


def pool(name: str, created: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "pilotlight", "uid": name}
    metadata["creationTimestamp"] = created
    return service(annotations={}, labels={"pilotlight.io/pool": name}, **metadata)


def model(name: str, of_pool: str) -> dict[str, Any]:
    annotations = {"pilotlight.io/pool": of_pool, "serving.kserve.io/deploymentMode": "ModelMesh"}
    return service(annotations=annotations, name=name, uid=name)


async def test_models_of_another_pool_are_routed_until_they_go(stage: Stage) -> None:
    server, objects, reconciler = stage
    for each in (pool("first", "2026-01-01"), pool("second", "2026-01-02"),
                 model("a", "first"), model("b", "second")):  # fmt: skip
        objects.update(read_service(each))
    assert await reconciler.reconcile_all()
    assert server.names() == {"first", "b.team.second"}
    count = len(server.requests)
    await reconciler.reconcile_all()
    assert len(server.requests) == count
    objects.update(read_service(model("b", "second")), is_removed=True)
    await reconciler.reconcile_all()
    assert server.names() == {"first"}
    objects.update(read_service(pool("second", "2026-01-02")), is_removed=True)
    await reconciler.reconcile_all()
    assert {path for path in server.objects if path.startswith(INFERENCE_POOLS)} == {
        f"{INFERENCE_POOLS}/first"
    }


async def test_one_that_is_anothers_does_not_stop_the_rest(stage: Stage) -> None:
    server, objects, reconciler = stage
    theirs = {"metadata": {"name": "first"}}
    server.objects[f"{INFERENCE_POOLS}/first"] = theirs
    objects.update(read_service(pool("first", "2026-01-01")))
    with pytest.raises(Denied, match="exists and is not that of"):
        await reconciler.reconcile_all()
    assert server.objects[f"{INFERENCE_POOLS}/first"] == theirs
    assert server.names() == {"first"}


async def test_kinds_that_are_missing_are_asked_for_once(stage: Stage) -> None:
    server, objects, reconciler = stage
    server.kinds = ()
    objects.update(read_service(pool("first", "2026-01-01")))
    for _ in range(3):
        assert await reconciler.reconcile_all()
    assert server.requests == [f"GET {INFERENCE_POOLS}", f"GET {ROUTES}"]


def without_picker(reconciler: InferencePoolReconciler) -> InferencePoolReconciler:
    """A controller that starts later, without the flag."""
    api, writer, objects = reconciler._api, reconciler._writer, reconciler._objects
    return InferencePoolReconciler(ControllerSettings(), api, writer, objects)


async def test_without_the_flag_what_was_made_is_deleted(stage: Stage) -> None:
    server, objects, reconciler = stage
    objects.update(read_service(pool("first", "2026-01-01")))
    await reconciler.reconcile_all()
    theirs = {"metadata": {"name": "theirs"}}
    server.objects[f"{ROUTES}/theirs"] = theirs
    await without_picker(reconciler).reconcile_all()
    assert server.objects == {f"{ROUTES}/theirs": theirs}


async def test_without_the_flag_a_role_without_the_kinds_is_no_fault(stage: Stage) -> None:
    server, objects, reconciler = stage
    objects.update(read_service(pool("first", "2026-01-01")))
    server.is_denied = True
    assert await without_picker(reconciler).reconcile_all()
    with pytest.raises(Denied):
        await reconciler.reconcile_all()
