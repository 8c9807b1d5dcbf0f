"""Lists, metadata and readiness of models: KServe's V1 and V2 protocols, and OpenAI's.

Also what is asked of pods beside inference: a model's V2 metadata, and background loads.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from common.pod_client import PodClient, PodRefused
from gateway.dispatch.placer import Placer
from gateway.dispatch.reservations import Placement, Reservations
from gateway.errors import NotReady, Rejected, UndeclaredModel
from gateway.http.openai import error_document
from gateway.routing.decision import Reason
from gateway.routing.route_request import can_be_served
from gateway.telemetry.explanations import Explanations
from registry.domain.cluster import ClusterState
from registry.domain.model import (
    PERMANENT_STATUSES,
    UNREADABLE,
    ModelName,
    ModelRecord,
    ModelSpec,
    Task,
    Tier,
)
from registry.inference_service.predictors import unmet_needs
from registry.redis.watch import ClusterWatch

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 10.0
_MAX_KEPT: Final = 1024
_TOO_LARGE: Final = "model-too-large"
"""Header `x-pilotlight-error` of a permanent 507, unlike that of a full disk."""
_MAX_WAITING: Final = 64
_PARALLEL_LOADS: Final = 4


class ModelMetadata:
    """V2 metadata of models, read by a pod from their files and cached by generation.

    The pod is one that has the model, else any that accepts requests.
    """

    def __init__(self, pods: PodClient, state: ClusterState) -> None:
        self._pods = pods
        self._state = state
        self._kept: dict[str, dict[str, Any]] = {}

    async def read(self, spec: ModelSpec) -> dict[str, Any]:
        """The metadata document.

        Raises NotReady if no pod responds with it, Rejected if the files cannot be read.
        """
        known = self._kept.get(spec.key)
        if known is None:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    known = await self._ask(spec)
            except (PodRefused, TimeoutError, ValueError) as error:
                raise NotReady(
                    f"no pod told the inputs of model {spec.name}: {error}", retry_after_s=1.0
                ) from error
            if len(self._kept) >= _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[spec.key] = known
        return known

    async def _ask(self, spec: ModelSpec) -> dict[str, Any]:
        response = await self._pods.metadata(self._address(spec), spec.name.path_segment)
        found: dict[str, Any] = response.json()
        if response.status == HTTPStatus.OK:
            return found
        text = str(found.get("error", response.text[:500]))
        is_too_large = response.headers.get("x-pilotlight-error") == _TOO_LARGE
        if response.status in PERMANENT_STATUSES or is_too_large:
            raise Rejected(Reason.LOAD_FAILED, text, http_status=response.status)
        raise NotReady(text, retry_after_s=1.0)

    def _address(self, spec: ModelSpec) -> str:
        """Address of the accepting pod with the nearest copy of the model. Raises NotReady."""
        holders = self._state.holders(spec.key)
        accepting = [pod for pod in self._state.pods.values() if pod.is_accepting]
        if not accepting:
            raise NotReady("no pod accepts requests", retry_after_s=1.0)
        pod = min(accepting, key=lambda each: (_distance(holders.get(each.name)), each.name))
        return pod.address


def _distance(residency: Any) -> int:
    """0: on the device; 1: in host memory or on disk; 2: in object storage."""
    return 2 if residency is None else 0 if residency.is_warm else 1


class ModelLoads:
    """Background loads that the credit of requests started (`gateway.routing.cold_start`).

    At most one runs per model. The pod claims the load in the registry, where the autoscaler sees
    it, and refuses one that is not needed.
    """

    def __init__(self, pods: PodClient, state: ClusterState) -> None:
        self._pods = pods
        self._state = state
        self._waiting: asyncio.Queue[tuple[ModelName, str]] = asyncio.Queue(_MAX_WAITING)
        self._known: set[ModelName] = set()

    def request(self, model: ModelName, pod: str) -> None:
        """Queue a load, unless one of the model is in progress or the queue is full."""
        if model not in self._known and not self._waiting.full():
            self._known.add(model)
            self._waiting.put_nowait((model, pod))

    async def run(self) -> None:
        """Load until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_PARALLEL_LOADS):
                    group.create_task(self._load_each())
        finally:
            self._pods.close()

    async def _load_each(self) -> None:
        while True:
            model, name = await self._waiting.get()
            fields: dict[str, object] = {"model": model, "pod": name}
            pod = self._state.pods.get(name)
            try:
                if pod is not None:
                    segment = model.path_segment
                    await self._pods.load(pod.address, segment, Tier.DEVICE, max_other_copies=0)
                    logger.info("loaded for requests", extra=fields)
            except PodRefused as error:
                outcome = "failed" if error.is_unreachable else "refused"
                logger.warning("background load %s", outcome, extra=fields | {"detail": error})
            finally:
                self._known.discard(model)


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
    from variants.live_window import NoUsableVariant, require_usable, variants_of

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
