"""Every endpoint but inference: models, health, metrics, explanations, OpenAPI."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from gateway.errors import GatewayError
from gateway.management.models import kserve_models, openai_models
from gateway.management.openapi import with_inference_paths
from registry.errors import RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.dispatch.reservations import Reservations
    from gateway.telemetry.explanations import Explanations
    from gateway.telemetry.metrics import GatewayMetrics
    from registry.redis.client import Registry
    from registry.redis.watch import ClusterWatch

MAX_REGISTRY_AGE_S = 10.0
"""A gateway with an older cluster state reports it as stale in `/readyz`, but still serves."""


def create_api(
    watch: ClusterWatch,
    metrics: GatewayMetrics,
    explanations: Explanations,
    dispatcher: Dispatcher,
    reservations: Reservations,
    is_draining: Callable[[], bool],
) -> FastAPI:
    api = FastAPI(
        title="Pilotlight gateway",
        version="0.1.0",
        description="KServe V1 and V2 inference with model-aware routing.",
    )
    _add_health(api, watch, is_draining)
    api.include_router(kserve_models(watch))
    api.include_router(openai_models(watch))
    _add_explanations(api, explanations)
    _add_idle_memory(api, watch.registry)

    @api.get("/metrics", tags=["operation"])
    def prometheus_metrics() -> Response:
        """Metrics in Prometheus' text format."""
        metrics.unread.set(metrics.take_unread_s())
        metrics.waiting.set(dispatcher.queued_total)
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
    def is_ready() -> bool:
        return watch.age_s() != math.inf and not is_draining()

    @api.get("/", tags=["operation"])
    def root() -> dict[str, str]:
        """Liveness, in the form of KServe's servers."""
        return {"status": "alive"}

    @api.get("/healthz", tags=["operation"])
    def healthz() -> dict[str, str]:
        """The process runs."""
        return {"status": "ok"}

    @api.get("/readyz", tags=["operation"])
    def readyz() -> JSONResponse:
        """Requests are accepted: the registry was read and the gateway does not drain."""
        age_s, ready = watch.age_s(), is_ready()
        return JSONResponse(
            {
                "ready": ready,
                "draining": is_draining(),
                "pods": len(watch.state.pods),
                "registry_age_seconds": age_s if age_s != math.inf else None,
                "registry_stale": age_s > MAX_REGISTRY_AGE_S,
                "registry_version": watch.state.version,
            },
            status_code=200 if ready else 503,
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
        return JSONResponse({"ready": is_ready()}, 200 if is_ready() else 503)


def _add_explanations(api: FastAPI, explanations: Explanations) -> None:
    @api.get("/pilotlight/v1/explain/{request_id:path}", tags=["operation"])
    def explain(request_id: str) -> JSONResponse:
        """The decision for a request: candidates, their estimates, the reason."""
        found = explanations.get(request_id)
        if found is None:
            return JSONResponse(
                {
                    "error": f"request {request_id!r} is not among the last ones of this gateway,"
                    f" {explanations.gateway}; if the response's header x-pilotlight-gateway names"
                    " another one, ask that one",
                    "gateway": explanations.gateway,
                },
                404,
            )
        return JSONResponse(found)


def _add_idle_memory(api: FastAPI, registry: Registry) -> None:
    @api.get("/pilotlight/v1/idle-memory", tags=["operation"])
    async def idle_memory() -> dict[str, float]:
        """Bytes of idle models times seconds, over all pods of the pool, also those that ended."""
        try:
            return {"idle_memory_byte_seconds": await registry.idle_byte_s()}
        except RegistryUnavailable as error:
            raise HTTPException(503, str(error)) from error
