"""Everything but inference: model lists and metadata, health, metrics, explanations, OpenAPI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from gateway.errors import GatewayError, UnknownModel
from gateway.management.openai_models import openai_models
from gateway.management.openapi import with_inference_paths
from gateway.selection.select_version import can_be_served
from registry.domain.model import ModelName
from registry.errors import RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.dispatch.reservations import Reservations
    from gateway.telemetry.explanations import Explanations
    from gateway.telemetry.metrics import GatewayMetrics
    from registry.domain.model import ModelRecord
    from registry.redis.client import Registry
    from registry.redis.watch import ClusterWatch

MOST_AGE_S = 10.0
"""A gateway that has not heard of the registry for longer says so in `/readyz`, but serves on."""


def create_api(
    watch: ClusterWatch,
    metrics: GatewayMetrics,
    explanations: Explanations,
    dispatcher: Dispatcher,
    reservations: Reservations,
    is_draining: Callable[[], bool],
) -> FastAPI:
    """The FastAPI application behind the inference paths."""
    api = FastAPI(
        title="Pilotlight gateway",
        version="0.1.0",
        description="KServe V1 and V2 inference with model-aware routing.",
    )
    _add_health(api, watch, is_draining)
    _add_models(api, watch)
    api.include_router(openai_models(watch))
    _add_explanations(api, explanations)
    _add_idle_memory(api, watch.registry)

    @api.get("/metrics", tags=["operation"])
    def prometheus_metrics() -> Response:
        """Metrics in Prometheus' text format."""
        metrics.waiting.set(dispatcher.waiting_total)
        metrics.reserved.set(reservations.held_total)
        metrics.registry_age.set(watch.age_s())
        metrics.registry_repairs.set(watch.repairs_total)
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @api.exception_handler(HTTPException)
    def http_error(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, error.status_code)

    @api.exception_handler(GatewayError)
    def gateway_error(_: Request, error: GatewayError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, int(error.status))

    with_inference_paths(api)
    return api


def _add_health(api: FastAPI, watch: ClusterWatch, is_draining: Callable[[], bool]) -> None:
    @api.get("/", tags=["operation"])
    def root() -> dict[str, str]:
        """Alive, as KServe's servers say it."""
        return {"status": "alive"}

    @api.get("/healthz", tags=["operation"])
    def healthz() -> dict[str, str]:
        """The process runs."""
        return {"status": "ok"}

    @api.get("/readyz", tags=["operation"])
    def readyz() -> JSONResponse:
        """Requests may be sent here: the registry was read once and the gateway does not drain."""
        age_s = watch.age_s()
        is_ready = age_s != float("inf") and not is_draining()
        return JSONResponse(
            {
                "ready": is_ready,
                "draining": is_draining(),
                "pods": len(watch.state.pods),
                "registry_age_seconds": age_s if age_s != float("inf") else None,
                "registry_stale": age_s > MOST_AGE_S,
                "registry_version": watch.state.version,
            },
            status_code=200 if is_ready else 503,
        )

    @api.get("/v2", tags=["v2"])
    def server_metadata() -> dict[str, Any]:
        """Server metadata of the Open Inference Protocol."""
        return {"name": "pilotlight", "version": "0.1.0", "extensions": ["binary_tensor_data"]}

    @api.get("/v2/health/live", tags=["v2"])
    def live() -> dict[str, bool]:
        """Liveness."""
        return {"live": True}

    @api.get("/v2/health/ready", tags=["v2"])
    def ready() -> JSONResponse:
        """Readiness."""
        is_ready = watch.age_s() != float("inf") and not is_draining()
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)


def _add_models(api: FastAPI, watch: ClusterWatch) -> None:
    # asynchronous all: a thread of FastAPI's would read the copy while it changes
    def names(request: Request) -> list[str]:
        namespace = request.scope.get("pilotlight.namespace", "default")
        return sorted(name.name for name in watch.state.models if name.namespace == namespace)

    def record(request: Request, name: str) -> ModelRecord:
        namespace = request.scope.get("pilotlight.namespace", "default")
        found = watch.state.models.get(ModelName(namespace, name))
        if found is None:
            raise UnknownModel(f"model {namespace}/{name} does not exist")
        return found

    def readiness(request: Request, name: str) -> JSONResponse:
        is_ready = can_be_served(record(request, name), watch.state)
        return JSONResponse({"name": name, "ready": is_ready}, 200 if is_ready else 503)

    def entry(name: str, found: ModelRecord) -> dict[str, str]:
        return {
            "name": name,
            "version": found.serving.generation,
            "state": "READY" if can_be_served(found, watch.state) else "UNAVAILABLE",
            "reason": "" if found.failure is None else found.failure.message,
        }

    @api.get("/v1/models", tags=["v1"])
    async def v1_models(request: Request) -> dict[str, list[str]]:
        """Names of the namespace's models."""
        return {"models": names(request)}

    @api.get("/v1/models/{name}", tags=["v1"])
    async def v1_model(request: Request, name: str) -> JSONResponse:
        """Whether a model can be served, cold if need be."""
        return readiness(request, name)

    @api.get("/v2/models", tags=["v2"])
    async def v2_models(request: Request) -> dict[str, list[str]]:
        """Names of the namespace's models."""
        return {"models": names(request)}

    @api.get("/v2/models/{name}", tags=["v2"])
    async def v2_model(request: Request, name: str) -> dict[str, Any]:
        """Model metadata."""
        spec = record(request, name).serving
        return {
            "name": name,
            "versions": [spec.generation],
            "platform": spec.format,
            "inputs": [],
            "outputs": [],
        }

    @api.get("/v2/models/{name}/ready", tags=["v2"])
    async def v2_ready(request: Request, name: str) -> JSONResponse:
        """Whether a model can be served, cold if need be."""
        return readiness(request, name)

    @api.post("/v2/repository/index", tags=["v2"])
    async def index(request: Request) -> list[dict[str, str]]:
        """All models of the namespace with their state."""
        return [entry(name, record(request, name)) for name in names(request)]


def _add_explanations(api: FastAPI, explanations: Explanations) -> None:
    @api.get("/pilotlight/v1/explain/{request_id:path}", tags=["operation"])
    def explain(request_id: str) -> JSONResponse:
        """Why a request went where it went: candidates, their estimates, the reason."""
        found = explanations.get(request_id)
        if found is None:
            return JSONResponse(
                {"error": f"request {request_id!r} is not among the last ones here"}, 404
            )
        return JSONResponse(found)


def _add_idle_memory(api: FastAPI, registry: Registry) -> None:
    @api.get("/pilotlight/v1/idle-memory", tags=["operation"])
    async def idle_memory() -> dict[str, float]:
        """Bytes of idle models times seconds, of all the pool's pods so far, gone ones included."""
        try:
            return {"idle_memory_byte_seconds": await registry.idle_byte_s()}
        except RegistryUnavailable as error:
            raise HTTPException(503, str(error)) from error
