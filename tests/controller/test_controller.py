"""The controller's loop against a small API server and a real Redis, with the faults of both."""

import asyncio
import contextlib
import copy
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from common.settings_table import settings_from_fields
from controller import controller as loop
from controller import informer as reflector
from controller import leader_election, model_reconciler, model_status, uninstall
from controller.api import ClusterApi
from controller.controller import FEW_CONFLICTS, Controller, WorkQueue
from controller.declaration_reconcilers import GraphReconciler
from controller.informer import Informer
from controller.leader_election import Leadership
from controller.model_reconciler import ModelReconciler
from controller.objects import ClusterObjects, Key
from controller.pools import PoolRegistries, TenantRulesWriter
from controller.resources import KSERVE_FINALIZER, Kind, owner_of, read_graph_object
from controller.settings import ControllerSettings
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from tests import servers
from tests.controller.api_server import ApiServer, connect, running
from tests.controller.objects import model, pool_tenant, service
from tests.controller.test_graph_objects import graph
from tests.registry.redis.clients import until

_pools = itertools.count(1)
NAME = ModelName("team", "translate")
PATH = str(NAME)


@dataclass
class Replica:
    """One replica of the controller, without its webhooks."""

    objects: ClusterObjects
    informer: Informer
    models: ModelReconciler
    controller: Controller
    registries: PoolRegistries


@contextlib.asynccontextmanager
async def replica(
    url: str, redis_url: str, agent: str = "one", *, leads: bool = True, token: int = 1
) -> AsyncIterator[Replica]:
    objects = ClusterObjects()
    async with connect(url, agent) as connection, asyncio.TaskGroup() as tasks:
        api = ClusterApi(connection, component="controller", instance=agent)
        registries = PoolRegistries(redis_url, tasks, lambda: controller.on_registry_change())
        settings = settings_from_fields(ControllerSettings, {})
        models = ModelReconciler(settings, api, objects, registries)
        tenants = TenantRulesWriter(api, objects, registries, lambda: token)
        controller = Controller(
            objects,
            {
                **dict.fromkeys(Kind, models.reconcile),
                **dict.fromkeys((Kind.POD, Kind.APPLICATION, Kind.GRAPH), _nothing),
                Kind.TENANT: lambda _: tenants.update(),
            },
            models.changed_in_registries,
        )
        informer = Informer(connection, objects, pool_namespaces=["pilotlight"])

        async def act() -> None:
            await informer.listed.wait()
            await controller.run()

        running_tasks = [tasks.create_task(informer.run()), tasks.create_task(act())]
        controller.set_leading(leads)
        yield Replica(objects, informer, models, controller, registries)
        for each in running_tasks:
            each.cancel()
        await registries.close()


async def _nothing(_: Key) -> None:
    return None


@dataclass
class Stage:
    server: ApiServer
    url: str
    redis_url: str
    pool: str

    def model(self, **metadata: Any) -> dict[str, Any]:
        annotations = {
            "pilotlight.io/pool": self.pool,
            "serving.kserve.io/deploymentMode": "ModelMesh",
        }
        return service(annotations=annotations, **metadata)

    def status(self) -> dict[str, Any]:
        return dict(self.server.objects[PATH].get("status") or {})

    def is_ready(self) -> bool:
        conditions = self.status().get("conditions") or []
        return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

    def reason(self) -> str:
        """Of Ready."""
        conditions = self.status().get("conditions") or []
        return next((each["reason"] for each in conditions if each["type"] == "Ready"), "")

    def statuses_written(self) -> int:
        return sum(what == "status" and status == 200 for _, what, status in self.server.writes)

    def state(self, of: Replica) -> ClusterState:
        return of.registries.get(self.pool).state


@pytest.fixture
async def stage(
    redis: servers.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    monkeypatch.setattr(reflector, "RETRY_S", 0.05)
    monkeypatch.setattr(reflector, "ABSENT_S", 0.1)
    monkeypatch.setattr(loop, "RETRY_DELAYS_S", dict.fromkeys(loop.RETRY_DELAYS_S, 0.05))
    server = ApiServer()
    async with running(server) as url:
        stage = Stage(server, url, redis.url, f"controlled-{next(_pools)}")
        labels = {"pilotlight.io/pool": stage.pool}
        server.put(
            service(name="pool", namespace="pilotlight", uid="p", labels=labels, annotations={})
        )
        server.put(pool_tenant(stage.pool, storage_prefixes="s3://"))
        yield stage


async def test_a_model_costs_a_finalizer_a_status_and_an_event(stage: Stage) -> None:
    stage.server.put(stage.model())
    async with replica(stage.url, stage.redis_url) as one:
        await until(stage.is_ready, what="the model is ready")
        await until(lambda: bool(stage.server.events), what="its event is posted")
        assert [write[1:] for write in stage.server.writes] == [("translate", 200), ("status", 200)]
        assert NAME in stage.state(one).models


@pytest.mark.slow
async def test_a_version_of_kserve_that_is_not_tested_is_in_the_status(stage: Stage) -> None:
    stage.server.put(stage.model())

    def message() -> str:
        conditions = stage.status().get("conditions", [])
        return {each["type"]: str(each["message"]) for each in conditions}.get("Ready", "")

    async with replica(stage.url, stage.redis_url) as one:
        await until(stage.is_ready, what="the model is ready")
        one.models.kserve_problem = "KServe 0.99 is not tested"
        one.controller.on_registry_change()
        await until(lambda: message().endswith("; KServe 0.99 is not tested"), what="it is said")
        one.models.kserve_problem = ""
        one.controller.on_registry_change()
        await until(lambda: "KServe" not in message(), what="it is said no longer")


async def test_a_deleted_model_is_unloaded_and_forgotten(stage: Stage) -> None:
    stage.server.put(stage.model())
    async with replica(stage.url, stage.redis_url) as one:
        await until(stage.is_ready, what="the model is ready")
        document = stage.server.objects[PATH]
        document["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
        document["metadata"]["finalizers"].append(KSERVE_FINALIZER)
        stage.server.put(document)
        await until(lambda: PATH not in stage.server.objects, what="its finalizers are gone")
        await until(lambda: NAME not in stage.state(one).models, what="the registry is clean")
        await until(
            lambda: not one.models._known.keys() & {Key(Kind.SERVICE, NAME)},
            what="nothing of it is kept",
        )


async def test_a_model_of_our_own_is_served_without_kserve(stage: Stage) -> None:
    """By a pool that is a Deployment; KServe's Deployments are not pools."""
    stage.server.missing = frozenset({"inferenceservices", "inferencegraphs"})
    pool = service(name="pool", namespace="pilotlight", uid="d", annotations={})
    pool["metadata"]["labels"] = {"pilotlight.io/pool": stage.pool}
    owned = service(name="owned", namespace="pilotlight", uid="o", annotations={})
    owned["metadata"] |= {"labels": {"pilotlight.io/pool": "owned"}, "ownerReferences": [{}]}
    for each in (pool, owned):
        stage.server.put({**each, "kind": "Deployment"})
    stage.server.put(model(pool=stage.pool, deadline="7s"))
    async with replica(stage.url, stage.redis_url) as one:
        path = f"models/{PATH}"
        await until(
            lambda: bool(stage.server.objects[path].get("status")), what="its status is written"
        )
        status = stage.server.objects[path]["status"]
        assert {each["status"] for each in status["conditions"]} == {"True", "False"}
        assert "deploymentMode" not in status
        assert stage.state(one).models[NAME].spec.policy.deadline_s == 7.0
        assert one.objects.pools() == {stage.pool}
        gone = stage.server.objects[path]
        gone["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
        stage.server.put(gone)
        await until(lambda: path not in stage.server.objects, what="its finalizer is gone")
        await until(lambda: NAME not in stage.state(one).models, what="the registry is clean")


async def test_deployments_out_of_reach_are_no_pools(stage: Stage) -> None:
    stage.server.fault = lambda request: 403 if request.path.endswith("/deployments") else None
    stage.server.put(stage.model())
    async with replica(stage.url, stage.redis_url):
        await until(stage.is_ready, what="the model is ready")


async def test_a_transformer_is_made_watched_and_deleted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_reconciler, "COMPONENT_POLL_INTERVAL_S", 0.05)
    monkeypatch.setattr(model_reconciler, "REFUSED_POLL_INTERVAL_S", 0.05)
    monkeypatch.setattr(model_status, "WRITE_INTERVAL_S", 0.05)
    deployment = "/apis/apps/v1/namespaces/team/deployments/translate-transformer"
    document = stage.model()
    document["spec"]["transformer"] = {"containers": [{"image": "mine"}]}
    stage.server.fault = lambda request: 403 if request.path == deployment else None
    stage.server.put(document)

    def condition(kind: str) -> dict[str, Any]:
        conditions = stage.status().get("conditions") or []
        return dict(next((each for each in conditions if each["type"] == kind), {}))

    async with replica(stage.url, stage.redis_url):
        await until(
            lambda: "rolebinding" in condition("Ready").get("message", ""),
            what="the missing right is named",
        )
        assert condition("Ready")["status"] == "False"
        stage.server.fault = lambda _: None
        await until(lambda: len(stage.server.owned) == 4, what="its objects are made")
        await until(lambda: condition("Ready").get("status") == "Unknown", what="it starts")
        available = {"type": "Available", "status": "True"}
        stage.server.owned[deployment]["status"] = {"conditions": [available]}
        await until(stage.is_ready, what="the model is ready with it")
        del stage.server.owned[deployment]  # by somebody
        await until(lambda: deployment in stage.server.owned, what="it is made again")
        changed = stage.server.objects[PATH]
        del changed["spec"]["transformer"]
        stage.server.put(changed)
        await until(
            lambda: not any("transformer" in each for each in stage.server.owned),
            what="what is no longer declared is deleted",
        )


async def test_of_two_objects_of_one_name_the_older_is_served(stage: Stage) -> None:
    younger = model(pool=stage.pool)
    younger["metadata"] |= {"uid": "younger", "creationTimestamp": "2026-01-01T00:00:09Z"}
    stage.server.put(stage.model())
    stage.server.put(younger)
    path = f"models/{PATH}"

    def condition() -> dict[str, Any]:
        conditions = stage.server.objects[path].get("status", {}).get("conditions", [])
        return dict(next((each for each in conditions if each["type"] == "Ready"), {}))

    async with replica(stage.url, stage.redis_url) as one:
        await until(stage.is_ready, what="the older is ready")
        await until(lambda: condition().get("status") == "False", what="the younger is refused")
        assert (
            "InferenceService team/translate declares the model already" in condition()["message"]
        )
        assert "finalizers" not in stage.server.objects[path]["metadata"]
        stage.server.delete(PATH)
        await until(lambda: condition().get("status") == "True", what="the younger takes the name")
        assert owner_of(stage.state(one).models[NAME].spec) == "younger"


@pytest.mark.slow
@pytest.mark.parametrize(
    "finalizers", [pytest.param(None, id="annotation"), pytest.param([], id="finalizer-too")]
)
async def test_a_model_that_loses_its_annotation_is_withdrawn(
    stage: Stage, finalizers: list[str] | None
) -> None:
    stage.server.put(stage.model())
    async with replica(stage.url, stage.redis_url) as one:
        await until(stage.is_ready, what="the model is ready")
        document = copy.deepcopy(stage.server.objects[PATH])
        del document["metadata"]["annotations"]["pilotlight.io/pool"]
        if finalizers is not None:
            document["metadata"]["finalizers"] = finalizers
        stage.server.put(document)
        await until(lambda: stage.reason() == "Withdrawn", what="its status says so")
        assert "url" not in stage.status()
        assert stage.server.objects[PATH]["metadata"]["finalizers"] == []
        await until(lambda: NAME not in stage.state(one).models, what="the registry is clean")
        await until(lambda: NAME not in one.objects.services, what="it is KServe's alone")
        stage.server.put(stage.model())
        await until(stage.is_ready, what="the model is served again")


@pytest.mark.slow
async def test_before_an_uninstall_models_are_free_and_no_controller_takes_them_again(
    stage: Stage, short_lease: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uninstall, "RENEW_S", 1.0)
    stage.server.put(stage.model(finalizers=[KSERVE_FINALIZER]))  # it has lost its transformer
    async with (
        replica(stage.url, stage.redis_url, leads=False) as one,
        connect(stage.url) as connection,
    ):
        election = Leadership(connection, "pilotlight", "one", one.controller.set_leading)
        task = asyncio.create_task(election.run())
        await until(stage.is_ready, what="the model is ready")
        settings = settings_from_fields(ControllerSettings, {})
        async with connect(stage.url, "uninstall") as second:
            await uninstall.release_models(second, settings)
        written = len(stage.server.writes)
        document = stage.server.objects[PATH]
        assert document["metadata"]["finalizers"] == []
        assert stage.reason() == "Withdrawn"
        stage.server.put(document)
        await asyncio.sleep(1.0)  # several renewals of a lease that is not theirs
        assert len(stage.server.writes) == written
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_uninstall_of_many_models_keeps_the_lease(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uninstall, "RENEW_S", 0.0)
    monkeypatch.setattr(uninstall, "RENEWED_EVERY", 2)
    stage.server.lease = {"metadata": {"name": "pilotlight-controller"}, "spec": {}}
    names = [f"model-{number}" for number in range(5)]
    for name in names:
        stage.server.put(stage.model(name=name, uid=name, finalizers=["pilotlight.io/unload"]))
    renewed: set[str] = set()

    async def note(_: web.Request) -> None:
        assert stage.server.lease is not None
        renewed.add(stage.server.lease["spec"]["renewTime"])

    stage.server.before_write = note
    async with connect(stage.url, "uninstall") as connection:
        await uninstall.release_models(connection, settings_from_fields(ControllerSettings, {}))
    assert len(renewed) >= 3  # else a controller would add the finalizers of the first again


async def test_an_object_that_vanishes_during_its_reconciliation_does_not_stay(
    stage: Stage,
) -> None:
    async def vanish(_: web.Request) -> None:
        if PATH in stage.server.objects:
            stage.server.delete(PATH, is_sent=False)

    stage.server.put(stage.model())
    stage.server.before_write = vanish
    async with replica(stage.url, stage.redis_url) as one:
        await until(lambda: bool(stage.server.writes), what="a write met no object")
        await until(lambda: NAME not in one.objects.services, what="the object is forgotten")
        await until(lambda: NAME not in stage.state(one).models, what="the registry is clean")


@pytest.mark.slow
@pytest.mark.parametrize("status", [409, 422, 429, 500, 503])
async def test_a_write_that_failed_is_made_again(stage: Stage, status: int) -> None:
    left = [3]

    def fail(request: web.Request) -> int | None:
        if request.method != "PATCH" or not left[0]:
            return None
        left[0] -= 1
        return status

    stage.server.put(stage.model())
    stage.server.fault = fail
    async with replica(stage.url, stage.redis_url):
        await until(stage.is_ready, what="the model is ready")


@pytest.mark.slow
async def test_a_write_that_the_api_server_never_takes_is_made_less_and_less_often(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that finds a status invalid: its answer is that of a conflict."""
    loop = asyncio.get_running_loop()
    made_s = list[float]()

    def refuse(request: web.Request) -> int | None:
        if not request.path.endswith("/status"):
            return None
        made_s.append(loop.time())
        return 422

    stage.server.put(stage.model())
    stage.server.fault = refuse
    async with replica(stage.url, stage.redis_url):
        await until(lambda: len(made_s) == FEW_CONFLICTS + 5, what="ten writes are refused")
    pauses_s = [later - before for before, later in itertools.pairwise(made_s)]
    assert sum(pauses_s[-2:]) > sum(pauses_s[:4])
    assert [each.message for each in caplog.records].count("failed; retrying") == 1


async def test_an_event_that_could_not_be_posted_is_posted_later(stage: Stage) -> None:
    left = [2]

    def fail(request: web.Request) -> int | None:
        if not request.path.endswith("/events") or not left[0]:
            return None
        left[0] -= 1
        return 500

    stage.server.put(stage.model())
    stage.server.fault = fail
    async with replica(stage.url, stage.redis_url):
        await until(lambda: stage.server.events == ["Served"], what="the event is posted")
        assert stage.statuses_written() == 1


async def test_an_event_that_the_api_server_refuses_keeps_nothing_else_from_being_done(
    stage: Stage,
) -> None:
    """A quota of events is used up, or the namespace is ending."""
    stage.server.put(stage.model())
    stage.server.fault = lambda request: 403 if request.path.endswith("/events") else None
    async with replica(stage.url, stage.redis_url) as one:
        await until(stage.is_ready, what="the model is ready")
        changed = stage.model()
        changed["metadata"]["finalizers"] = stage.server.objects[PATH]["metadata"]["finalizers"]
        changed["spec"]["predictor"]["model"]["storageUri"] = "s3://models/changed"
        stage.server.put(changed)
        registered = stage.state(one).models
        await until(lambda: "changed" in str(registered[NAME].spec), what="the change is served")


async def test_graphs_reconciled_before_their_pool_is_open_are_found(stage: Stage) -> None:
    async with replica(stage.url, stage.redis_url) as one, connect(stage.url) as connection:
        await one.informer.listed.wait()
        registries = PoolRegistries(stage.redis_url, one.registries._tasks, lambda: None)
        api = ClusterApi(connection, component="controller", instance="two")
        await GraphReconciler(api, one.objects, registries).reconcile_all()
        assert list(registries.opened()) == [stage.pool]
        await registries.close()


async def test_a_graph_whose_event_is_refused_keeps_no_other_from_being_reported(
    stage: Stage,
) -> None:
    def refuse(request: web.Request) -> int | None:
        return 403 if "/namespaces/full/" in request.path else None

    stage.server.fault = refuse
    objects = ClusterObjects()
    for namespace in ("full", "team"):
        objects.update(read_graph_object(graph(pool="none", namespace=namespace, uid=namespace)))
    async with connect(stage.url) as connection, asyncio.TaskGroup() as tasks:
        api = ClusterApi(connection, component="controller", instance="one")
        registries = PoolRegistries(stage.redis_url, tasks, lambda: None)
        await GraphReconciler(api, objects, registries).reconcile_all()
    assert stage.server.events == ["NotServed"]


@pytest.mark.slow
async def test_a_rollout_keeps_the_version_before_until_all_traffic_moves(stage: Stage) -> None:
    stage.server.put(stage.model())
    async with replica(stage.url, stage.redis_url) as one:
        await until(stage.is_ready, what="the model is ready")
        before = stage.state(one).models[NAME].spec

        def put(percent: int | None) -> None:
            document = stage.server.objects[PATH]
            predictor = document["spec"]["predictor"]
            predictor["model"]["storageUri"] = "s3://models/v2"
            predictor["canaryTrafficPercent"] = percent
            stage.server.put(document)

        def shares() -> list[tuple[str, int]]:
            predictor = stage.status().get("components", {}).get("predictor", {})
            return [(x["revisionName"], x["percent"]) for x in predictor.get("traffic", [])]

        put(10)
        await until(lambda: len(shares()) == 2, what="the canary is shown")
        models = stage.state(one).models
        trial = ModelName(NAME.namespace, f"{NAME.name}-canary")
        assert models[NAME].spec == before
        assert models[trial].spec.storage_uri == "s3://models/v2"
        assert [percent for _, percent in shares()] == [10, 90]
        await one.models.reconcile(Key(Kind.SERVICE, None))  # the canary is no orphan
        assert trial in stage.state(one).models
        put(None)
        await until(lambda: trial not in stage.state(one).models, what="the rollout has ended")
        assert stage.state(one).models[NAME].spec.storage_uri == "s3://models/v2"
        await until(lambda: [p for _, p in shares()] == [100], what="all traffic is shown")


@pytest.mark.slow
async def test_an_earlier_model_that_uses_the_quota_later_displaces_a_later_one(
    stage: Stage,
) -> None:
    def pinned(**metadata: Any) -> dict[str, Any]:
        document = stage.model(**metadata)
        document["metadata"]["annotations"]["pilotlight.io/pin"] = "true"
        return document

    stage.server.put(pool_tenant(stage.pool, storage_prefixes="s3://", quotas="pinned:1"))
    later = {"name": "later", "uid": "uid-2", "creationTimestamp": "2026-01-02T00:00:00Z"}
    stage.server.put(stage.model())
    stage.server.put(pinned(**later))
    async with replica(stage.url, stage.redis_url) as one:

        def pins() -> dict[str, bool]:
            models = stage.state(one).models
            return {name.name: record.spec.policy.pin for name, record in models.items()}

        def is_at_rest() -> bool:
            queue = one.controller._queue
            is_idle = not (queue._waiting or queue._active or queue._timers)
            return is_idle and stage.server.events == ["Served", "Served"]

        await until(lambda: pins() == {"translate": False, "later": True}, what="both are served")
        await until(is_at_rest, what="nothing is left to do")
        stage.server.put(pinned(finalizers=stage.server.objects[PATH]["metadata"]["finalizers"]))
        await until(lambda: pins() == {"translate": True}, timeout_s=20, what="one is withdrawn")


async def test_a_deletion_that_a_lost_watch_missed_is_found(stage: Stage) -> None:
    stage.server.put(stage.model())
    async with replica(stage.url, stage.redis_url) as one:
        await until(lambda: NAME in stage.state(one).models, what="the model is registered")
        await until(stage.is_ready, what="the model is ready")
        stage.server.delete(PATH, is_sent=False)
        stage.server.expire_watches()  # 410: the version is too old
        await until(lambda: NAME not in one.objects.services, what="the deletion is found")
        await until(lambda: NAME not in stage.state(one).models, what="the registry is clean")
        stage.server.put(stage.model(uid="later"))
        await until(lambda: NAME in one.objects.services, what="the watch goes on")


async def test_an_object_of_any_size_passes_the_watch(stage: Stage) -> None:
    async with replica(stage.url, stage.redis_url, leads=False) as one:
        await one.informer.listed.wait()
        await until(lambda: bool(stage.server._watches), what="the watch is open")
        document = stage.model()
        document["metadata"]["annotations"]["note"] = "x" * (3 << 20)
        stage.server.put(document)
        await until(lambda: NAME in one.objects.services, what="the object is known")


async def test_nothing_is_taken_for_removed_while_a_kind_could_not_be_listed(stage: Stage) -> None:
    asked = list[str]()

    def fail(request: web.Request) -> int | None:
        if "watch" in request.query or not request.path.endswith("inferencegraphs"):
            return None
        asked.append(request.path)
        return 500 if len(asked) < 4 else 404

    stage.server.fault = fail
    stage.server.put(stage.model())
    async with replica(stage.url, stage.redis_url) as one:
        await until(lambda: len(asked) == 3, what="a kind could not be listed")
        assert not one.informer.listed.is_set()
        assert not stage.server.writes
        await until(stage.is_ready, what="a kind that is not installed has no objects")


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_kind_that_is_missing_for_a_moment_keeps_its_objects(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """While its definition is replaced, the API server answers 404, also to a new controller."""
    monkeypatch.setattr(reflector, "ABSENT_S", 60.0 if not is_known else 0.0)
    stage.server.graphs = [graph(stage.pool)]
    missing, is_missing = list[str](), not is_known

    def fail(request: web.Request) -> int | None:
        if not request.path.endswith("inferencegraphs"):
            return None
        if "watch" in request.query:
            return 500  # it is listed again
        if is_missing:
            missing.append(request.path)
        return 404 if is_missing else None

    stage.server.fault = fail
    async with replica(stage.url, stage.redis_url) as one:
        if is_known:
            await until(lambda: bool(one.objects.graphs), what="the graph is known")
        is_missing = True
        await until(lambda: len(missing) > 5, what="the kind is missing")
        assert bool(one.objects.graphs) is one.informer.listed.is_set() is is_known
        is_missing = False
        await until(lambda: bool(one.objects.graphs), what="the graph is there")
        await until(one.informer.listed.is_set, what="all is listed")


async def test_time_without_an_answer_does_not_count_as_time_without_a_kind(stage: Stage) -> None:
    """An API server that starts anew may answer 404 at first, as one may that ends."""
    stage.server.graphs = [graph(stage.pool)]
    answers = [404, *[500] * 8, 404]

    def fail(request: web.Request) -> int | None:
        is_list = "watch" not in request.query and request.path.endswith("inferencegraphs")
        return answers.pop(0) if answers and is_list else None

    stage.server.fault = fail
    async with replica(stage.url, stage.redis_url) as one:
        await until(one.informer.listed.is_set, what="all is listed")
        assert one.objects.graphs


@pytest.mark.slow
async def test_a_replica_that_loses_the_lead_in_a_slow_write_writes_nothing_more(
    stage: Stage,
) -> None:
    reached, goes_on = asyncio.Event(), asyncio.Event()

    async def hold(request: web.Request) -> None:
        if request.headers["user-agent"] == "one" and request.path.endswith("/status"):
            reached.set()
            await goes_on.wait()

    stage.server.put(stage.model())
    stage.server.before_write = hold
    async with (
        replica(stage.url, stage.redis_url) as one,
        replica(stage.url, stage.redis_url, "two", leads=False) as two,
    ):
        await asyncio.wait_for(reached.wait(), 30)
        one.controller.set_leading(False)
        two.controller.set_leading(True)
        await until(lambda: stage.server.events == ["Served"], what="the new leader acts")
        goes_on.set()
        await until(
            lambda: ("one", "status", 200) in stage.server.writes, what="the slow write arrives"
        )
        stage.server.put(stage.model(name="later", uid="uid-2"))
        await until(lambda: len(stage.server.events) > 1, what="the new leader goes on")
        assert stage.server.events == ["Served", "Served"]
        assert [who for who, *_ in stage.server.writes if who == "one"] == ["one", "one"]


async def test_a_registry_without_data_gets_all_models_again(stage: Stage) -> None:
    stage.server.put(stage.model())
    async with replica(stage.url, stage.redis_url) as one:
        await until(lambda: NAME in stage.state(one).models, what="the model is registered")
        await one.registries.get(stage.pool).client.delete_models([NAME])
        await until(lambda: NAME in stage.state(one).models, what="it is registered again")


async def test_a_key_is_processed_by_one_worker_and_again_if_it_changed_meanwhile() -> None:
    queue, key = WorkQueue(), Key(Kind.SERVICE, NAME)
    queue.add(key)
    queue.add(key)
    assert await queue.get() == key
    queue.add(key)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.05)
    queue.done(key)
    assert await queue.get() == key
    queue.done(key)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.05)


async def test_a_change_comes_before_a_retry_that_is_due_later() -> None:
    queue, key = WorkQueue(), Key(Kind.SERVICE, NAME)
    queue.add_after(key, 0.05)
    queue.add(key)
    assert await queue.get() == key
    queue.done(key)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.2)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEASE_S", 1), ("RENEW_S", 0.7), ("RETRY_S", 0.1)):
        monkeypatch.setattr(leader_election, name, value)


async def test_two_replicas_never_lead_at_a_time(stage: Stage, short_lease: None) -> None:
    """The first is cut off from the API server, as one that hangs or was killed."""
    leading, history, is_cut = set[str](), list[set[str]](), [False]

    def note(who: str, is_leading: bool) -> None:
        (leading.add if is_leading else leading.discard)(who)
        history.append(set(leading))

    stage.server.fault = lambda request: (
        500 if is_cut[0] and request.headers["user-agent"] == "one" else None
    )
    async with connect(stage.url, "one") as first, connect(stage.url, "two") as second:
        one = Leadership(first, "pilotlight", "one", lambda leads: note("one", leads))
        two = Leadership(second, "pilotlight", "two", lambda leads: note("two", leads))
        tasks = [asyncio.create_task(one.run())]
        await until(lambda: leading == {"one"}, what="the first leads")
        tasks.append(asyncio.create_task(two.run()))
        is_cut[0] = True
        await until(lambda: leading == {"two"}, what="the second leads")
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert {"one", "two"} not in history


async def test_a_lease_that_another_took_is_given_up(stage: Stage, short_lease: None) -> None:
    changes = list[bool]()
    async with connect(stage.url) as connection:
        task = asyncio.create_task(Leadership(connection, "ns", "one", changes.append).run())
        await until(lambda: changes == [True], what="it leads")
        lease = stage.server.lease
        assert lease is not None
        stage.server.version += 1
        lease["spec"]["holderIdentity"] = "other"
        lease["metadata"]["resourceVersion"] = str(stage.server.version)
        await until(lambda: changes[:2] == [True, False], what="it follows")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_leader_that_ends_releases_the_lease(stage: Stage, short_lease: None) -> None:
    changes = list[bool]()
    async with connect(stage.url) as connection:
        task = asyncio.create_task(Leadership(connection, "ns", "one", changes.append).run())
        await until(lambda: changes == [True], what="it leads")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert stage.server.lease is not None
    assert stage.server.lease["spec"]["holderIdentity"] is None
