"""Every endpoint but inference: health, metrics, explanations, and the OpenAPI document.

The document is completed with inference, which FastAPI does not serve, and with errors as sent.
"""

import math
from collections.abc import Mapping, Sequence
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

_PUBLIC: Final = frozenset(
    ("/", "/healthz", "/readyz", "/v2", "/v2/", "/v2/health/live", "/v2/health/ready")
)
"""Without a key or token."""
ERRORS: Final = {
    "400": "The request is malformed.",
    "404": "The model does not exist, or has another name than the Host or prefix.",
    "408": "The body was sent, or the response read, too slowly.",
    "413": "The body is over the limit.",
    "415": "The body is compressed in a way that is not read; see accept-encoding.",
    "422": "The model's files cannot be served as they are; the error says why.",
    "424": "A tensor that the request refers to is not kept any more.",
    "429": "The model's queue is full; see retry-after.",
    "500": "The model failed.",
    "501": "No pod of the pool can serve the model as it is declared; the error says why.",
    "502": "The pod was lost during the request, which may have been executed.",
    "503": "The model could not be loaded, or no pod accepts requests; see retry-after.",
    "504": "The deadline cannot be met, or has passed.",
    "507": "The disk is full, or the model is larger than a budget of a pod: no retry-after then.",
}
"""Of inference."""
_ACCESS_ERRORS: Final = {
    "401": "A key or token is needed; only where the gateway asks for one.",
    "403": "The token is of another namespace; only where the gateway asks for one.",
}
_NAME_ERRORS: Final = {
    "400": "A name has characters that names cannot have.",
    "404": ERRORS["404"],
    "503": "The model cannot be served now, or no pod answers; see retry-after.",
}
_UNREADABLE: Final = {status: ERRORS[status] for status in ("422", "501")}
_WORKFLOW_ERRORS: Final = {
    "400": "The file or the arguments have a mistake; or the graph's step answers so.",
    "404": "The workflow, graph or run does not exist.",
    "408": "The body was sent too slowly.",
    "409": "The name is taken, or the workflow was stopped.",
    "413": ERRORS["413"],
    "429": "There are too many runs or files; see retry-after.",
    "500": "The run failed.",
    "502": "The scheduler was lost during the request.",
    "503": "No scheduler of workflows runs; see retry-after.",
    "504": "The run's deadline has passed.",
}
_UNSENT: Final = ("HTTPValidationError", "ValidationError")
"""FastAPI's own, of a status that it never sends here: parameters are texts."""


def _object(needed: dict[str, Any], optional: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The schema of an object with these properties."""
    return {"type": "object", "properties": needed | optional, "required": [*needed], **more}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": "string", "nullable": True}
_SCHEMAS: Final = {
    "Error": _object({"error": {**_TEXT, "description": "What is wrong."}}, {}),
    "OpenAIError": _object(
        {
            "error": _object(
                {"message": _TEXT, "type": _TEXT}, {"param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL}
            )
        },
        {},
    ),
}
_V1_BODY: Final = _object(
    {"instances": _list({})}, {}, example={"instances": [[6.8, 2.8, 4.8, 1.4]]}
)
_TENSOR: Final = _object(
    {"name": _TEXT, "shape": _list({"type": "integer"}), "datatype": _TEXT}, {"data": _list({})}
)
_V2_BODY: Final = _object(
    {"inputs": _list(_TENSOR)},
    {"id": _TEXT},
    example={
        "inputs": [
            {"name": "input-0", "shape": [1, 4], "datatype": "FP32", "data": [6.8, 2.8, 4.8, 1.4]}
        ]
    },
)
_OPENAI_EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "completions": {"model": "writer", "prompt": "Once upon a time", "max_tokens": 16},
    "chat/completions": {
        "model": "writer",
        "messages": [{"role": "user", "content": "What is a cat?"}],
    },
    "embeddings": {"model": "embed", "input": ["a cat", "a dog"]},
    "images/generations": {"model": "painter", "prompt": "a cat", "size": "256x256"},
}
_INFERENCE: Final = {
    "/v1/models/{name}:predict": ("v1", "Predict with a model by KServe's V1", _V1_BODY),
    "/v1/models/{name}:explain": ("v1", "Explain a prediction, by its explainer", _V1_BODY),
    "/v2/models/{name}/infer": ("v2", "Infer with a model by V2", _V2_BODY),
    "/v2/models/{name}/versions/{version}/infer": (
        "v2", "Infer with a model by V2; every version is the declared one", _V2_BODY,
    ),
    **{
        f"/openai/v1/{endpoint}": (
            "openai", summary.rstrip("."),
            _object(
                {"model": _TEXT}, {"stream": {"type": "boolean"}},
                example=_OPENAI_EXAMPLES[endpoint],
            ),
        )
        for endpoint, summary in openai.ENDPOINTS.items()
    },
}  # fmt: skip
"""Tag, summary and body of each path."""
_HEADERS: Final = {
    "x-pilotlight-policy": "Routing policy for this request.",
    "x-pilotlight-deadline-ms": "Milliseconds from arrival within which a response is useful.",
    "x-request-id": "Request id; generated if absent, always returned.",
}
_RESPONSE: Final = (
    "The response; x-pilotlight-pod, -gateway, -policy, -reason, -start; server-timing."
)
_PLAIN: Final = (
    "of the namespace `default`, of the Host's (`NAME.NAMESPACE.…`), or of the only one that the"
    " caller's key is of."
)
_ANY: Final = "of the namespace and name before it; the model's name may not differ."
_CURL: Final = "curl -X POST http://localhost:8080{path} -H 'content-type: application/json' -d '…'"
_NO_MARKS: Final = str.maketrans({"/": "_", "{": None, "}": None, ":": "_"})


def inference_operations() -> dict[str, dict[str, Any]]:
    """Operations by path, all of them POST."""
    found: dict[str, dict[str, Any]] = {}
    for path, (tag, summary, body) in _INFERENCE.items():
        found[path] = _inference(path, tag, summary, f"{summary}, {_PLAIN}", body)
        prefixed = "/serving/{namespace}/{name}" + path
        found[prefixed] = _inference(
            prefixed, tag, f"{summary} in any namespace", f"{summary}, {_ANY}", body
        )
    return found


def _inference(
    path: str, tag: str, summary: str, description: str, body: dict[str, Any]
) -> dict[str, Any]:
    example = path.format(namespace="default", name="iris", version="1")
    headers = [
        {"name": name, "in": "header", "description": text, "schema": _TEXT}
        for name, text in _HEADERS.items()
    ]
    return {
        "operationId": f"infer_{path.strip('/').translate(_NO_MARKS)}",
        "tags": [tag],
        "summary": f"{summary}.",
        "description": f"{description}\n\n    {_CURL.format(path=example)}",
        "parameters": [*_path_parameters(path), *headers],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": _RESPONSE}},
    }


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [each for each in ("namespace", "name", "version", "identity") if f"{{{each}}}" in path]
    return [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]


def complete_openapi(api: FastAPI) -> None:
    """Let the application's document say what is sent."""
    generate = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _completed(generate())
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    for path, item in document["paths"].items():
        for operation in item.values():
            _describe(path, operation)
    for path, operation in inference_operations().items():
        document["paths"][path] = {"post": operation}
        _add_errors(path, operation, ERRORS)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in _UNSENT:
        schemas.pop(name, None)
    schemas.update(_SCHEMAS)
    return document


def _describe(path: str, operation: dict[str, Any]) -> None:
    """A summary in words, in place of the function's name, and the errors."""
    summary, _, rest = operation.get("description", operation["summary"]).partition("\n")
    operation["summary"] = summary.strip()
    operation["description"] = rest.strip() or operation["summary"]
    operation["responses"].pop("422", None)
    if parameters := _path_parameters(path):
        operation.setdefault("parameters", parameters)
    _add_errors(path, operation, _errors_of(path, operation))


def _errors_of(path: str, operation: Mapping[str, Any]) -> dict[str, str]:
    if "workflows" in operation.get("tags", ()):
        return _WORKFLOW_ERRORS
    if path in ("/readyz", "/v2/health/ready"):
        return {"503": "The registry was not read yet, or the gateway shuts down."}
    if path.startswith("/pilotlight/v1/explain"):
        return {"404": "The request is not among the last ones of this gateway."}
    if path == "/pilotlight/v1/idle-memory":
        return {"503": "The registry does not answer."}
    if path.startswith("/v2/models/{name}") and not path.endswith("/ready"):
        return {**_NAME_ERRORS, **_UNREADABLE}  # which a pod reads
    return _NAME_ERRORS if "{name}" in path else {}


def _add_errors(path: str, operation: dict[str, Any], errors: Mapping[str, str]) -> None:
    schema = "OpenAIError" if "/openai/" in path else "Error"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    if path == "/readyz" or path.endswith("/ready"):
        content = {"application/json": {"schema": {"type": "object"}}}  # the state itself
    access = {} if path in _PUBLIC and "workflows" not in operation["tags"] else _ACCESS_ERRORS
    for status, text in {**errors, **access}.items():
        operation["responses"][status] = {"description": text, "content": content}


MAX_REGISTRY_AGE_S = 10.0
"""A gateway with an older cluster state reports it as stale in `/readyz`, but still serves."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")


def render_metrics(
    metrics: GatewayMetrics, pools: Sequence[ServedPool], accept: str
) -> tuple[bytes, str]:
    """Update the gauges, then return body and content type, as `exposition`."""
    queued = sum(each.placer.queued_total for each in pools)
    reserved = sum(each.reservations.held_total for each in pools)
    metrics.unread.set(metrics.take_unread_s())
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
