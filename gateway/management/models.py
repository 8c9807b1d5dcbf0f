"""Lists, metadata and readiness of models: KServe's V1 and V2 protocols, and OpenAI's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gateway.errors import UndeclaredModel
from gateway.http.openai import error_document
from gateway.selection.select_version import can_be_served
from registry.domain.model import ModelName
from registry.inference_service.predictors import unmet_needs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.management.served_pool import ServedPool
    from registry.domain.model import ModelRecord


def _model(request: Request, name: str) -> ModelName:
    return ModelName(request.scope.get("pilotlight.namespace", "default"), name)


def _names(request: Request, pools: Sequence[ServedPool]) -> list[str]:
    namespace = request.scope.get("pilotlight.namespace", "default")
    models = (name for pool in pools for name in pool.watch.state.models)
    return sorted({name.name for name in models if name.namespace == namespace})


def kserve_models(pools: Sequence[ServedPool]) -> APIRouter:
    router = APIRouter()
    # all asynchronous: a thread of FastAPI's would read the cluster state while it changes

    def record(request: Request, name: str) -> tuple[ModelRecord, ServedPool]:
        model = _model(request, name)
        for pool in pools:
            if found := pool.watch.state.models.get(model):
                return found, pool
        raise UndeclaredModel(f"model {model} does not exist")

    def entry(name: str, found: ModelRecord, pool: ServedPool) -> dict[str, str]:
        state = pool.watch.state
        failure = "" if found.failure is None else found.failure.message
        return {
            "name": name,
            "version": found.serving.generation,
            "state": "READY" if can_be_served(found, state) else "UNAVAILABLE",
            "reason": unmet_needs(found.serving, state) or failure,
        }

    @router.get("/v1/models", tags=["v1"], name="v1_models")
    @router.get("/v2/models", tags=["v2"], name="v2_models")
    async def models(request: Request) -> dict[str, list[str]]:
        """Names of the namespace's models."""
        return {"models": _names(request, pools)}

    @router.get("/v1/models/{name}", tags=["v1"], name="v1_model")
    @router.get("/v2/models/{name}/ready", tags=["v2"], name="v2_ready")
    async def readiness(request: Request, name: str) -> JSONResponse:
        """Whether a model can be served, if need be after a cold start."""
        found, pool = record(request, name)
        is_ready = can_be_served(found, pool.watch.state)
        return JSONResponse({"name": name, "ready": is_ready}, 200 if is_ready else 503)

    @router.get("/v2/models/{name}", tags=["v2"])
    async def v2_model(request: Request, name: str) -> dict[str, Any]:
        """Model metadata: inputs and outputs, as a pod reads them from the model's files."""
        found, pool = record(request, name)
        spec = found.serving
        return {**await pool.metadata.read(spec), "name": name, "versions": [spec.generation]}

    @router.post("/v2/repository/index", tags=["v2"])
    async def index(request: Request) -> list[dict[str, str]]:
        """All models of the namespace with their state."""
        return [entry(name, *record(request, name)) for name in _names(request, pools)]

    return router


def openai_models(pools: Sequence[ServedPool]) -> APIRouter:
    router = APIRouter()

    @router.get("/openai/v1/models", tags=["openai"])
    async def models(request: Request) -> dict[str, Any]:
        """Models of the namespace."""
        cards = [_card(_model(request, name)) for name in _names(request, pools)]
        return {"object": "list", "data": cards}

    @router.get("/openai/v1/models/{name}", tags=["openai"])
    async def model(request: Request, name: str) -> JSONResponse:
        """One model."""
        found = _model(request, name)
        if all(found not in each.watch.state.models for each in pools):
            error = UndeclaredModel(f"model {found} does not exist")
            return JSONResponse(error_document(error), int(error.status))
        return JSONResponse(_card(found))

    return router


def _card(name: ModelName) -> dict[str, Any]:
    """One model; `created` is 0, since the registry stores no dates."""
    return {"id": name.name, "object": "model", "created": 0, "owned_by": name.namespace}
