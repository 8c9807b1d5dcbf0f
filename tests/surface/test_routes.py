"""HTTP routes and gRPC methods of gateway, pod, scheduler of workflows and controller.

The servers are composed as in the processes; a part that only handlers use is `ABSENT`.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any
from unittest.mock import NonCallableMagicMock

from kserve.model_server import app as kserve_app
from starlette.routing import Route

from common.grpc.server import HEALTH
from common.pod_secret import PodSecret
from common.probe_server import PATHS
from common.tls import PartTls
from controller.admission import validate
from controller.webhook_server import admission_app
from gateway.__main__ import running_app
from gateway.grpc.inference_service import InferenceService
from gateway.picker.process import PROCESS
from gateway.settings import GatewaySettings
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.openai.routes import OpenAIRoutes
from runtime.protocols import servers
from runtime.protocols.routes import Routes, profile_route, tensor_routes
from runtime.protocols.servers import PodServer
from tests.surface.recorded import assert_recorded
from workflows.api import create_api
from workflows.metrics import SchedulerMetrics
from workflows.scheduler import Scheduler
from workflows.settings import SchedulerSettings

REDIS = "redis://127.0.0.1:1"
"""None: no server is asked."""
ABSENT: Any = NonCallableMagicMock()


def _http(process: str, routes: Iterable[Any], documented: Any = None) -> Iterator[str]:
    """`documented`: OpenAPI's paths; some of them are served before the framework."""
    found = {(each.path, method) for each in _flat(routes) for method in each.methods or ()}
    for path, methods in (documented or {}).items():
        found |= {(path, method.upper()) for method in methods}
    yield f"{process}, HTTP"
    yield from (f"    {path} {method}" for path, method in sorted(found) if method != "HEAD")


def _flat(routes: Iterable[Any]) -> Iterator[Any]:
    """Also those of FastAPI's included routers."""
    for each in routes:
        if hasattr(each, "effective_candidates"):
            yield from _flat(each.effective_candidates())
            yield from _flat(each.effective_low_priority_routes())
        else:
            yield each


def _grpc(process: str, *tables: Iterable[str]) -> Iterator[str]:
    yield f"{process}, gRPC"
    for paths in tables:
        yield from (f"    {path}" for path in sorted(paths))


async def _gateway() -> list[str]:
    async with running_app(GatewaySettings(redis_url=REDIS)) as app:
        api: Any = app._api
        paths = [path.decode() for path in (*InferenceService(app).calls(), HEALTH, PROCESS)]
        documented = api.openapi()["paths"]
        return [*_http("gateway", api.routes, documented), *_grpc("gateway", paths)]


async def _pod() -> list[str]:
    own = [
        *Routes(ABSENT, ABSENT, ABSENT, 1).table(),
        *OpenAIRoutes(ABSENT, ABSENT, 1).table(),
        *tensor_routes(ABSENT, ABSENT),
        profile_route(ABSENT, ABSENT),
    ]
    PodServer(own, PodSecret(""), PartTls(""))
    calls = servers.InferenceService(ABSENT, ABSENT, ABSENT, ABSENT)
    return [*_http("pod", kserve_app.routes), *_grpc("pod", calls.handler()._method_handlers)]


async def _scheduler() -> list[str]:
    registry, secret, metrics = Registry(REDIS, "default"), PodSecret(""), SchedulerMetrics()
    settings = SchedulerSettings()
    async with asyncio.TaskGroup() as group:
        scheduler = Scheduler(settings, ClusterWatch(registry), group, secret, metrics, PartTls(""))
        routes = create_api(scheduler, secret, metrics).routes
        scheduler.close()
    await registry.close()
    return list(_http("workflows", routes))


def test_routes_of_the_gateway_are_as_recorded() -> None:
    assert_recorded("routes_gateway", asyncio.run(_gateway()))


def test_routes_of_a_pod_are_as_recorded() -> None:
    assert_recorded("routes_pod", asyncio.run(_pod()))


def test_routes_of_the_scheduler_are_as_recorded() -> None:
    assert_recorded("routes_workflows", asyncio.run(_scheduler()))


def test_routes_of_the_controller_are_as_recorded() -> None:
    probes = [Route(path, len, methods=["GET"]) for path in PATHS]
    assert_recorded(
        "routes_controller", _http("controller", [*probes, *admission_app(validate).routes])
    )
