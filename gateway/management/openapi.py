"""Adds the inference paths, which FastAPI does not serve, to the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.http import openai

if TYPE_CHECKING:
    from fastapi import FastAPI

_PATHS = {
    "/v1/models/{name}:predict": ("v1", "Predict with a model of the namespace `default`."),
    "/v2/models/{name}/infer": ("v2", "Infer with a model of the namespace `default`."),
    "/serving/{namespace}/{name}/v1/models/{name}:predict": ("v1", "Predict, any namespace."),
    "/serving/{namespace}/{name}/v2/models/{name}/infer": ("v2", "Infer, any namespace."),
    **{f"/openai/v1/{name}": ("openai", summary) for name, summary in openai.ENDPOINTS.items()},
    **{
        f"/serving/{{namespace}}/{{name}}/openai/v1/{endpoint}": ("openai", "Any namespace.")
        for endpoint in openai.ENDPOINTS
    },
}
_V1_BODY = {
    "type": "object",
    "properties": {"instances": {"type": "array", "items": {}}},
    "required": ["instances"],
}
_V2_BODY = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "inputs": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "shape": {"type": "array", "items": {"type": "integer"}},
                    "datatype": {"type": "string"},
                    "data": {"type": "array", "items": {}},
                },
                "required": ["name", "shape", "datatype"],
            },
        },
    },
    "required": ["inputs"],
}
_OPENAI_BODY = {
    "type": "object",
    "properties": {"model": {"type": "string"}, "stream": {"type": "boolean"}},
    "required": ["model"],
}
_BODIES = {"v1": _V1_BODY, "v2": _V2_BODY, "openai": _OPENAI_BODY}
_HEADERS = {
    "x-pilotlight-policy": "Routing policy for this request.",
    "x-pilotlight-deadline-ms": "Milliseconds from arrival within which a response is useful.",
    "x-request-id": "Request id; generated if absent, always returned.",
}
_RESPONSES = {
    "200": "The response; x-pilotlight-pod, -gateway, -policy, -reason, -start; server-timing.",
    "400": "The request is malformed.",
    "404": "The model does not exist.",
    "413": "The body is over the limit.",
    "429": "The model's queue is full; see Retry-After.",
    "501": "No pod of the pool can serve the model as it is declared; the error says why.",
    "503": "The model could not be loaded; see Retry-After.",
    "504": "The deadline cannot be met, or has passed.",
    "507": "The model is larger than any pod's memory budget.",
}


def with_inference_paths(api: FastAPI) -> None:
    generate = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            document = generate()
            document["paths"].update({path: _operation(path) for path in _PATHS})
            api.openapi_schema = document
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _operation(path: str) -> dict[str, Any]:
    protocol, summary = _PATHS[path]
    names = [name for name in ("namespace", "name") if f"{{{name}}}" in path]
    return {
        "post": {
            "tags": [protocol],
            "summary": summary,
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in names
            ]
            + [
                {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
                for name, text in _HEADERS.items()
            ],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _BODIES[protocol]}},
            },
            "responses": {code: {"description": text} for code, text in _RESPONSES.items()},
        }
    }
