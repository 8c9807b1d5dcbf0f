"""Applications of the cluster in a real registry; the API server is a small one over real HTTP."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from controller.admission import validate
from controller.api import ClusterApi, ClusterUnreachable, Denied
from controller.declaration_reconcilers import ApplicationReconciler, application_status
from controller.objects import ClusterObjects
from controller.pools import PoolRegistries
from controller.resources import read_application_object, read_service, read_tenant
from registry.domain.application import AccuracyProfile
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelPolicy, ModelRecord, ModelSpec
from tests import servers
from tests.controller.objects import pool_tenant, service
from tests.registry.redis.clients import until

_pools = itertools.count(1)
LOOK = {"classes": ["a", "b"], "sneakPeek": {"uri": "s3://examples/digits"}}
NOW = "2026-01-02T00:00:00Z"


@dataclass
class ApiServer:
    """Takes status patches as the API server does; refuses those of names in `refused`."""

    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    """HTTP status by name; `*`: all."""

    async def patch(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        status = self.refused.get(name) or self.refused.get("*")
        if status is not None:
            return web.json_response({"message": "refused"}, status=status)
        operations = await request.json()
        [self.written[name]] = [each["value"] for each in operations if each["path"] == "/status"]
        return web.json_response({})


@dataclass
class Stage:
    pool: str
    server: ApiServer
    objects: ClusterObjects
    registries: PoolRegistries
    reconciler: ApplicationReconciler

    def declare(
        self,
        name: str = "digits",
        *,
        spec: dict[str, Any] | None = None,
        pool: str | None = None,
        is_removed: bool = False,
        uid: str = "uid-9",
    ) -> ModelName:
        found = read_application_object(
            {
                "metadata": {
                    "name": name,
                    "namespace": "team",
                    "uid": uid,
                    "resourceVersion": "3",
                    "generation": 2,
                    "annotations": {"pilotlight.io/pool": pool or self.pool},
                },
                "spec": spec or {"classes": ["a", "b"]},
                "status": self.server.written.get(name, {}),
            }
        )
        self.objects.update(found, is_removed=is_removed)
        return found.name

    def declare_pool(self, **data: str) -> None:
        document = service(
            name="pool",
            namespace="pilotlight",
            uid="p",
            labels={"pilotlight.io/pool": self.pool},
            annotations={},
        )
        self.objects.update(read_service(document))
        self.objects.update(read_tenant(pool_tenant(self.pool, **data)))

    @property
    def state(self) -> ClusterState:
        return self.registries.get(self.pool).state

    async def wait_registered(self, *names: ModelName) -> None:
        await until(lambda: self.state.applications.keys() == set(names), what=f"{names} are known")

    def ready(self, name: str = "digits") -> tuple[str, str]:
        [condition] = self.server.written[name]["conditions"]
        return condition["reason"], condition["message"]


@pytest.fixture
async def stage(redis: servers.RedisServer) -> AsyncIterator[Stage]:
    pool, server = f"applications-{next(_pools)}", ApiServer()
    routes = web.Application()
    routes.router.add_patch(
        "/apis/{group}/{version}/namespaces/{ns}/{kind}/{name}/status", server.patch
    )
    runner = web.AppRunner(routes)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    async with asyncio.TaskGroup() as tasks:
        registries, objects = PoolRegistries(redis.url, tasks, lambda: None), ClusterObjects()
        await registries.get(pool).watch.wait_synced()
        configuration = client.Configuration(host=f"http://{host}:{port}")
        async with client.ApiClient(configuration) as connection:
            api = ClusterApi(connection, component="controller", instance="test")
            made = Stage(
                pool, server, objects, registries, ApplicationReconciler(api, objects, registries)
            )
            made.declare_pool()
            yield made
        await registries.close()
    await runner.cleanup()


async def test_an_application_is_registered_and_deleted_with_its_object(stage: Stage) -> None:
    name = stage.declare()
    await stage.reconciler.reconcile_all()
    await stage.wait_registered(name)
    assert stage.state.applications[name].owner == "uid-9"
    assert stage.ready()[0] == "NoVariants"
    stage.declare(is_removed=True)
    await stage.reconciler.reconcile_all()
    await stage.wait_registered()


async def test_an_application_that_moved_to_another_pool_is_deleted_from_the_first(
    stage: Stage,
) -> None:
    name = stage.declare()
    await stage.reconciler.reconcile_all()
    await stage.wait_registered(name)
    stage.declare(pool="elsewhere")
    await stage.reconciler.reconcile_all()
    await stage.wait_registered()
    assert stage.ready() == ("NoPool", "there is no pool 'elsewhere'")


async def test_mistakes_delete_what_was_registered_and_are_said(stage: Stage) -> None:
    name = stage.declare()
    await stage.reconciler.reconcile_all()
    await stage.wait_registered(name)
    stage.declare(spec={"classes": ["a"]})
    await stage.reconciler.reconcile_all()
    await stage.wait_registered()
    reason, message = stage.ready()
    assert reason == "Invalid"
    assert "spec.classes must list 2 to 1000" in message


async def test_the_name_of_a_model_is_refused(stage: Stage) -> None:
    model = ModelSpec(ModelName("team", "digits"), "s3://m/1")
    await stage.registries.get(stage.pool).client.put_models([model])
    stage.declare()
    await stage.reconciler.reconcile_all()
    reason, message = stage.ready()
    assert reason == "Invalid"
    assert "metadata.name is that of a model" in message


async def test_the_rules_of_the_pool_hold_for_the_look(stage: Stage) -> None:
    stage.declare(spec=LOOK)
    await stage.reconciler.reconcile_all()
    assert "namespace 'team' may not have it read" in stage.ready()[1]
    stage.declare_pool(storage_prefixes="s3://examples/")
    await stage.reconciler.reconcile_all()
    assert stage.ready()[0] == "NoVariants"
    stage.declare_pool(admit="false")
    await stage.reconciler.reconcile_all()
    assert "does not admit namespace 'team'" in stage.ready()[1]


async def test_the_pass_after_one_that_failed_goes_on(stage: Stage) -> None:
    stage.declare()
    stage.server.refused["*"] = 500
    with pytest.raises(ClusterUnreachable):
        await stage.reconciler.reconcile_all()
    stage.server.refused.clear()
    await stage.reconciler.reconcile_all()
    assert stage.ready()[0] == "NoVariants"


async def test_an_object_that_is_refused_does_not_hold_up_others(stage: Stage) -> None:
    for at, name in enumerate(("digits", "wine")):
        stage.declare(name, uid=f"uid-{at}")
    stage.server.refused["digits"] = 403
    with pytest.raises(Denied):
        await stage.reconciler.reconcile_all()
    assert stage.server.written.keys() == {"wine"}


async def test_an_unchanged_status_is_not_written_again(stage: Stage) -> None:
    stage.declare()
    await stage.reconciler.reconcile_all()
    stage.declare()  # as it comes back from the API server, with its status
    stage.server.refused["*"] = 500
    await stage.reconciler.reconcile_all()


def application(spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "pilotlight.io/v1alpha1",
        "kind": "InferenceApplication",
        "metadata": {
            "name": "digits",
            "namespace": "team",
            "uid": "uid-9",
            "resourceVersion": "3",
            "generation": 2,
        },
        "spec": spec if spec is not None else {"classes": ["a", "b"]},
        "status": status,
    }


def _ready(state: ClusterState | None, document: dict[str, Any] | None = None) -> dict[str, Any]:
    found = read_application_object(document or application())
    status = application_status(found, state, found.problems, NOW)
    [condition] = status["conditions"]
    assert condition["type"] == "Ready"
    assert status["observedGeneration"] == 2
    return {**condition, "variants": status["variants"]}


def _state(**profiles: AccuracyProfile | None) -> ClusterState:
    state = ClusterState()
    for name, profile in profiles.items():
        model = ModelName("team", name)
        spec = ModelSpec(model, f"s3://m/{name}", policy=ModelPolicy(application="digits"))
        state.models[model] = ModelRecord(spec)
        if profile is not None:
            state.accuracies[model] = profile
    return state


def _key(name: str) -> str:
    return ModelSpec(ModelName("team", name), f"s3://m/{name}").key


MATRIX = ((9, 1), (1, 9))


def test_ready_once_a_variant_can_be_chosen() -> None:
    good = AccuracyProfile(_key("large"), ("a", "b"), MATRIX)
    stale = AccuracyProfile(_key("large"), ("a", "b"), MATRIX)  # of another model's generation
    found = _ready(_state(large=good, medium=stale, small=None))
    assert (found["status"], found["reason"]) == ("True", "VariantsUsable")
    assert found["message"] == (
        "variants: large; medium: its accuracy profile is of another generation; "
        "small: has no accuracy profile"
    )
    assert [each["usable"] for each in found["variants"]] == [True, False, False]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        pytest.param(None, "NoPool", id="no pool"),
        pytest.param(_state(), "NoVariants", id="no variants"),
        pytest.param(_state(small=None), "NoUsableVariant", id="none profiled"),
    ],
)
def test_not_ready_says_why(state: ClusterState | None, reason: str) -> None:
    found = _ready(state)
    assert (found["status"], found["reason"]) == ("False", reason)


def test_mistakes_are_in_the_condition_and_refused_by_the_webhook() -> None:
    document = application({"classes": ["a"], "policy": "best", "sneakPeek": {"uri": "x"}})
    found = _ready(_state(), document)
    assert found["reason"] == "Invalid"
    answer = validate({"uid": "r", "namespace": "team", "object": document})
    assert not answer["allowed"]
    for text in (found["message"], answer["status"]["message"]):
        assert "spec.classes must list 2 to 1000" in text
        assert "spec.policy must be one of" in text
        assert "spec.sneakPeek.uri must begin with" in text
    assert validate({"uid": "r", "namespace": "team", "object": application()})["allowed"]


def test_the_time_of_an_unchanged_condition_stays() -> None:
    before = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    found = _ready(_state(), application(conditions=[before]))
    assert found["lastTransitionTime"] == "2026-01-01T00:00:00Z"
