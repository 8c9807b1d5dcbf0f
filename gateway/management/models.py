"""Lists, metadata and readiness of models: KServe's V1 and V2 protocols, and OpenAI's."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gateway.dispatch.placement import Placement
from gateway.dispatch.placer import Placer
from gateway.dispatch.reservations import Reservations
from gateway.errors import NotReady, Rejected, UndeclaredModel
from gateway.http.openai import error_document
from gateway.routing.select_version import can_be_served
from gateway.telemetry.explanations import Explanations
from gateway.upstream.pod_models import ModelMetadata
from registry.domain.cluster import ClusterState
from registry.domain.model import UNREADABLE, ModelName, ModelRecord, Task
from registry.inference_service.predictors import unmet_needs
from registry.redis.watch import ClusterWatch

_OPENAI_TASKS: Final = frozenset(
    {Task.TEXT_EMBEDDING, Task.TEXT_TO_TEXT, Task.TEXT_GENERATION, Task.TEXT_TO_IMAGE}
)
_OPENAI_FORMATS: Final = frozenset({"huggingface", "safetensors", "pytorch"})
_KIND_TIMEOUT_S: Final = 2.0
"""For pods to tell what kind of model a list's models are; of the others it is not known."""
_PARALLEL: Final = 8


@dataclass(frozen=True, slots=True)
class ServedPool:
    """What the endpoints beside inference read of a pool."""

    name: str
    watch: ClusterWatch
    explanations: Explanations
    placer: Placer[Placement]
    reservations: Reservations
    metadata: ModelMetadata


def _model(request: Request, name: str) -> ModelName:
    return ModelName(request.scope.get("pilotlight.namespace", "default"), name)


def _called(request: Request, name: str) -> str:
    """The model's name as the caller wrote it."""
    return request.scope.get("pilotlight.called") or name


def _names(request: Request, pools: Sequence[ServedPool]) -> list[str]:
    """Models of the namespace; of a model's own address that one alone."""
    own = request.scope.get("pilotlight.name")
    if own is not None and _is_known(_model(request, own), pools):
        return [own]
    namespace = request.scope.get("pilotlight.namespace", "default")
    models = (name for pool in pools for name in pool.watch.state.models)
    return sorted({name.name for name in models if name.namespace == namespace})


def _is_known(name: ModelName, pools: Sequence[ServedPool]) -> bool:
    return any(name in each.watch.state.models for each in pools)


def _record(name: ModelName, state: ClusterState) -> ModelRecord | None:
    """The model's; an application's is that of its most accurate variant.

    Raises NotReady if no variant can be chosen.
    """
    application = state.applications.get(name)
    if application is None or name in state.models:
        return state.models.get(name)
    from variants.windows.live_window import NoUsableVariant, require_usable, variants_of

    variants = variants_of(application, state)
    try:
        require_usable(application, variants)
    except NoUsableVariant as error:
        raise NotReady(str(error), retry_after_s=1.0) from error
    best, _ = max(variants.usable, key=lambda each: each[1].accuracy)
    return state.models[best.name]


def kserve_models(pools: Sequence[ServedPool]) -> APIRouter:
    router = APIRouter()
    # all asynchronous: a thread of FastAPI's would read the cluster state while it changes

    def record(request: Request, name: str) -> tuple[ModelRecord, ServedPool]:
        model = _model(request, name)
        for pool in pools:
            if found := _record(model, pool.watch.state):
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
        """Names of the namespace's models; at a model's own address of that one."""
        return {"models": _names(request, pools)}

    @router.get("/v1/models/{name}", tags=["v1"], name="v1_model")
    @router.get("/v2/models/{name}/ready", tags=["v2"], name="v2_ready")
    @router.get("/v2/models/{name}/versions/{version}/ready", tags=["v2"], name="v2_version_ready")
    async def readiness(request: Request, name: str) -> JSONResponse:
        """Whether a model can be served, if need be after a cold start."""
        found, pool = record(request, name)
        is_ready = can_be_served(found, pool.watch.state)
        document = {"name": _called(request, name), "ready": is_ready}
        return JSONResponse(document, 200 if is_ready else 503)

    @router.get("/v2/models/{name}", tags=["v2"])
    @router.get("/v2/models/{name}/versions/{version}", tags=["v2"], name="v2_version")
    async def v2_model(request: Request, name: str) -> dict[str, Any]:
        """Model metadata: inputs and outputs, as a pod reads them from the model's files."""
        found, pool = record(request, name)
        spec = found.serving
        metadata, called = await pool.metadata.read(spec), _called(request, name)
        is_variant = found.spec.name != _model(request, name)
        versions = [] if is_variant else [spec.generation]
        shown = {key: value for key, value in metadata.items() if key != "answers_openai"}
        return {**shown, "name": called, "versions": versions}

    @router.post("/v2/repository/index", tags=["v2"])
    async def index(request: Request) -> list[dict[str, str]]:
        """All models of the namespace with their state."""
        return [entry(name, *record(request, name)) for name in _names(request, pools)]

    return router


async def _answers_openai(
    name: ModelName, pools: Sequence[ServedPool], limit: asyncio.Semaphore
) -> bool:
    """False of a model whose files cannot be read; without a task of its own a pod tells."""
    pool = next(each for each in pools if name in each.watch.state.models)
    record = pool.watch.state.models[name]
    spec, failure = record.serving, record.failure
    if failure is not None and failure.key == spec.key and failure.reason == UNREADABLE:
        return False
    if spec.task is not None or spec.format not in _OPENAI_FORMATS:
        return spec.task in _OPENAI_TASKS
    try:
        async with asyncio.timeout(_KIND_TIMEOUT_S), limit:
            return bool((await pool.metadata.read(spec)).get("answers_openai", True))
    except Rejected:
        return False
    except (NotReady, TimeoutError):
        return True


def openai_models(pools: Sequence[ServedPool]) -> APIRouter:
    router = APIRouter()

    @router.get("/openai/v1/models", tags=["openai"])
    async def models(request: Request) -> dict[str, Any]:
        """The namespace's models that OpenAI's endpoints are for, in OpenAI's form."""
        names = [_model(request, name) for name in _names(request, pools)]
        limit = asyncio.Semaphore(_PARALLEL)
        async with asyncio.TaskGroup() as group:
            kinds = [group.create_task(_answers_openai(name, pools, limit)) for name in names]
        cards = [_card(name) for name, kind in zip(names, kinds, strict=True) if kind.result()]
        return {"object": "list", "data": cards}

    @router.get("/openai/v1/models/{name}", tags=["openai"])
    async def model(request: Request, name: str) -> JSONResponse:
        """One of the namespace's models, in OpenAI's form."""
        found = _model(request, name)
        own = request.scope.get("pilotlight.name")
        if own not in (None, name) or not _is_known(found, pools):
            error = UndeclaredModel(f"model {found} does not exist")
            return JSONResponse(error_document(error), int(error.status))
        return JSONResponse(_card(found))

    return router


def _card(name: ModelName) -> dict[str, Any]:
    """One model; `created` is 0, since the registry stores no dates."""
    return {"id": name.name, "object": "model", "created": 0, "owned_by": name.namespace}
