"""Lists of models in OpenAI's form, read from the registry's copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gateway.errors import UnknownModel
from gateway.http.openai import error_document
from registry.domain.model import ModelName

if TYPE_CHECKING:
    from registry.redis.watch import ClusterWatch


def openai_models(watch: ClusterWatch) -> APIRouter:
    """The list of a namespace's models, and one of them."""
    router = APIRouter()

    @router.get("/openai/v1/models", tags=["openai"])
    async def models(request: Request) -> dict[str, Any]:
        """Models of the namespace."""
        namespace = request.scope.get("pilotlight.namespace", "default")
        names = sorted(name for name in watch.state.models if name.namespace == namespace)
        return {"object": "list", "data": [_card(name) for name in names]}

    @router.get("/openai/v1/models/{name}", tags=["openai"])
    async def model(request: Request, name: str) -> JSONResponse:
        """One model."""
        found = ModelName(request.scope.get("pilotlight.namespace", "default"), name)
        if found not in watch.state.models:
            error = UnknownModel(f"model {found} does not exist")
            return JSONResponse(error_document(error), int(error.status))
        return JSONResponse(_card(found))

    return router


def _card(name: ModelName) -> dict[str, Any]:
    """One model; the registry keeps no dates, so `created` is 0."""
    return {"id": name.name, "object": "model", "created": 0, "owned_by": name.namespace}
