"""Every endpoint but inference: health, metrics, explanations, and the OpenAPI document.

The document is completed with inference, which FastAPI does not serve, and with errors as sent.
"""

import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from common.probe_server import exposition
from gateway.errors import GatewayError, MethodNotAllowed, UnknownPath
from gateway.http import openai
from gateway.http.error_responses import body_and_headers, leaves_body_unread
from gateway.http.openai import is_openai, unknown_path
from gateway.management.models import ServedPool, kserve_models, openai_models
from gateway.request_task import Shutdown
from gateway.telemetry.explanations import Explanations
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.recent_requests import RecentRequests, explain_request
from registry.errors import RegistryUnavailable

_TEXT: Final = {"type": "string"}
_ERROR: Final = {
    "description": "An error; header x-pilotlight-reason names it.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"error": {"description": "A text; of OpenAI's API an object."}},
            }
        }
    },
}
_V1: Final = {"instances": [[6.8, 2.8, 4.8, 1.4]]}
_V2: Final = {
    "inputs": [
        {"name": "input-0", "shape": [1, 4], "datatype": "FP32", "data": [6.8, 2.8, 4.8, 1.4]}
    ]
}
_INFERENCE: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "/v1/models/{name}:predict": ("v1", "Predict with a model by KServe's V1.", _V1),
    "/v1/models/{name}:explain": ("v1", "Explain a prediction, by its explainer.", _V1),
    "/v2/models/{name}/infer": ("v2", "Infer with a model by V2.", _V2),
    "/v2/models/{name}/versions/{version}/infer": (
        "v2", "Infer with a model by V2; every version is the declared one.", _V2,
    ),
    **{
        f"/openai/v1/{endpoint}": ("openai", summary, openai.EXAMPLES[endpoint])
        for endpoint, summary in openai.ENDPOINTS.items()
    },
}  # fmt: skip
"""Tag, summary and an example of the body, by path."""
_HEADERS: Final = {
    "x-pilotlight-policy": "Routing policy for this request.",
    "x-pilotlight-deadline-ms": "Milliseconds from arrival within which a response is useful.",
    "x-request-id": "Request id; generated if absent, always returned.",
}
_NO_MARKS: Final = str.maketrans({"/": "_", "{": None, "}": None, ":": "_"})


def _inference(path: str, tag: str, summary: str, example: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": [*example], "example": example}
    headers = [
        {"name": name, "in": "header", "description": text, "schema": _TEXT}
        for name, text in _HEADERS.items()
    ]
    return {
        "operationId": f"infer_{path.strip('/').translate(_NO_MARKS)}",
        "tags": [tag],
        "summary": summary,
        "description": summary,
        "parameters": [*_path_parameters(path), *headers],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The response."}, "default": _ERROR},
    }


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [each for each in ("namespace", "name", "version", "identity") if f"{{{each}}}" in path]
    return [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]


def complete_openapi(api: FastAPI) -> None:
    """Add inference to the application's document, and errors as they are sent."""
    generate = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _completed(generate())
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    for path, item in document["paths"].items():
        for operation in item.values():
            summary, _, rest = operation["description"].partition("\n")
            operation["summary"], operation["description"] = summary, rest.strip() or summary
            operation["responses"].pop("422", None)  # FastAPI's own, which is never sent
            operation["responses"]["default"] = _ERROR
            given = operation.setdefault("parameters", [])
            names = {each["name"] for each in given}
            given += [each for each in _path_parameters(path) if each["name"] not in names]
    for path, described in _INFERENCE.items():
        for each in (path, "/serving/{namespace}/{name}" + path):
            document["paths"][each] = {"post": _inference(each, *described)}
    document.pop("components", None)
    return document


MAX_REGISTRY_AGE_S = 10.0
"""A gateway with an older cluster state reports it as stale in `/readyz`, but still serves."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")


def render_metrics(
    metrics: GatewayMetrics, pools: Sequence[ServedPool], accept: str
) -> tuple[bytes, str]:
    """Update the gauges, then return body and content type, as `exposition`."""
    queued = sum(each.placer.queued_total for each in pools)
    reserved = sum(each.reservations.held_total for each in pools)
    metrics.waiting.set(queued)
    metrics.reserved.set(reserved)
    metrics.in_flight.set(queued + reserved)
    metrics.registry_age.set(max(each.watch.age_s() for each in pools))
    metrics.registry_repairs.set(sum(each.watch.repairs_total for each in pools))
    return exposition(metrics.registry, accept)


def create_api(
    pools: Sequence[ServedPool], metrics: GatewayMetrics, recent: RecentRequests, shutdown: Shutdown
) -> FastAPI:
    api = FastAPI(
        title="Pilotlight gateway",
        version="0.1.0",
        description="KServe V1 and V2 inference with model-aware routing.",
        docs_url=None,  # its page loads scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # its redirects lose the prefix that names a namespace
    )
    _add_health(api, pools, shutdown)
    api.include_router(kserve_models(pools))
    api.include_router(openai_models(pools))
    _add_explanations(api, [each.explanations for each in pools], recent)

    @api.get("/pilotlight/v1/idle-memory", tags=["operation"])
    async def idle_memory() -> dict[str, float]:
        """Bytes of idle models times seconds, over all pods, also those that ended."""
        try:
            held = [await each.watch.registry.idle_byte_s() for each in pools]
        except RegistryUnavailable as error:
            raise HTTPException(503, str(error)) from error
        return {"idle_memory_byte_seconds": sum(held)}

    @api.get("/metrics", tags=["operation"])
    def prometheus_metrics(accept: Annotated[str, Header()] = "") -> Response:
        """Metrics in Prometheus' text format, or as OpenMetrics."""
        content, content_type = render_metrics(metrics, pools, accept)
        return Response(content, headers={"content-type": content_type})

    @api.get("/pilotlight/v1/targets", tags=["operation"])
    async def metric_targets() -> list[dict[str, Any]]:
        """Addresses of the pods' metrics, for Prometheus' HTTP service discovery."""
        return [
            {
                "targets": [pod.address],
                "labels": {"pool": pool.name, "pod": pod.name, "node": pod.node},
            }
            for pool in pools
            for pod in pool.watch.state.pods.values()
        ]

    _add_error_responses(api)
    complete_openapi(api)
    return api


def _add_error_responses(api: FastAPI) -> None:
    @api.exception_handler(GatewayError)
    def gateway_error(request: Request, error: GatewayError) -> Response:
        body, headers = body_and_headers(error, is_openai=is_openai(request.scope["path"]))
        named = {name.decode(): value.decode() for name, value in headers}
        if leaves_body_unread(error):
            named["connection"] = "close"
        return Response(body, int(error.status), headers=named)

    @api.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            path = request.scope["path"]
            allowed = _allowed_methods(api.routes, path)
            return gateway_error(request, MethodNotAllowed(request.method, path, allowed))
        if error.status_code == HTTPStatus.NOT_FOUND:
            path = request.scope["path"]
            message = unknown_path(request.method, path) if is_openai(path) else str(error.detail)
            return gateway_error(request, UnknownPath(message))
        return JSONResponse({"error": str(error.detail)}, error.status_code)


def _allowed_methods(routes: Sequence[BaseRoute], path: str) -> list[str]:
    """For the response's `allow`; `path` has no escapes."""

    def is_allowed(method: str) -> bool:
        asked = "GET" if method == "HEAD" else method  # as the application reads it
        scope = {"type": "http", "method": asked, "path": path}
        return any(route.matches(scope)[0] is Match.FULL for route in routes)

    return list(filter(is_allowed, _METHODS))


def _add_health(api: FastAPI, pools: Sequence[ServedPool], shutdown: Shutdown) -> None:
    watches = [each.watch for each in pools]

    def is_ready() -> bool:
        return all(each.age_s() != math.inf for each in watches) and not shutdown.has_begun

    @api.get("/", tags=["operation"])
    def root() -> dict[str, str]:
        """Whether the gateway lives, in the form of KServe's servers."""
        return {"status": "alive"}

    @api.get("/healthz", tags=["operation"])
    def healthz() -> dict[str, str]:
        """Whether the process runs."""
        return {"status": "ok"}

    @api.get("/readyz", tags=["operation"])
    def readyz() -> JSONResponse:
        """Whether requests are accepted: the registry was read, and no shutdown has begun."""
        age_s, ready = max(each.age_s() for each in watches), is_ready()
        return JSONResponse(
            {
                "ready": ready,
                "draining": shutdown.has_begun,
                "pods": sum(len(each.state.pods) for each in watches),
                "registry_age_seconds": age_s if age_s != math.inf else None,
                "registry_stale": age_s > MAX_REGISTRY_AGE_S,
                "registry_version": watches[0].state.version,
                "registry_versions": {each.name: each.watch.state.version for each in pools},
            },
            status_code=200 if ready else 503,
        )

    @api.get("/v2", tags=["v2"])
    @api.get("/v2/", tags=["v2"], name="v2_server")
    def server_metadata() -> dict[str, Any]:
        """Name, version and extensions of the server, by V2."""
        return {"name": "pilotlight", "version": "0.1.0", "extensions": ["binary_tensor_data"]}

    @api.get("/v2/health/live", tags=["v2"])
    def live() -> dict[str, bool]:
        """Whether the gateway lives, by V2."""
        return {"live": True}

    @api.get("/v2/health/ready", tags=["v2"])
    def ready() -> JSONResponse:
        """Whether the gateway accepts requests, by V2."""
        return JSONResponse({"ready": is_ready()}, 200 if is_ready() else 503)


def _add_explanations(
    api: FastAPI, explanations: Sequence[Explanations], recent: RecentRequests
) -> None:
    gateway = explanations[0].gateway

    @api.get("/pilotlight/v1/explain/{request_id:path}", tags=["operation"])
    def explain(request: Request, request_id: str) -> JSONResponse:
        """The decision for a request (candidates, their estimates, the reason) and its outcome."""
        namespaces = request.scope.get("pilotlight.namespaces")
        found = explain_request(explanations, recent, request_id, namespaces)
        if found is not None:
            return JSONResponse(found)
        return JSONResponse(
            {
                "error": f"request {request_id!r} is not among the last ones of this gateway,"
                f" {gateway}; if the response's header x-pilotlight-gateway names"
                " another one, ask that one",
                "gateway": gateway,
            },
            404,
        )
