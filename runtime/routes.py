"""The pod's HTTP routes. They come before KServe's own and shadow those of the same path."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response
from starlette.routing import Route

from registry.client import ClaimScope
from registry.model import ModelName
from runtime.bodies import Protocol
from runtime.errors import ModelNotFound, RuntimePackageError
from runtime.infer_route import InferRoute, error_response

if TYPE_CHECKING:
    from starlette.requests import Request

    from runtime.declared import DeclaredModels
    from runtime.health import Health
    from runtime.loads import Loads
    from runtime.service import PredictService
    from runtime.settings import PodSettings
    from runtime.store import ModelStore

UNLOAD_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Routes:
    """Everything the pod answers itself, beside what KServe's SDK answers."""

    settings: PodSettings
    service: PredictService
    declared: DeclaredModels
    loads: Loads
    store: ModelStore
    health: Health

    def table(self) -> list[Route]:
        """The routes, to be put before KServe's."""
        return [
            Route("/v1/models/{model}:predict", self._infer_route(Protocol.V1), methods=["POST"]),
            Route("/v2/models/{model}/infer", self._infer_route(Protocol.V2), methods=["POST"]),
            Route("/v1/models/{model}", self._model_ready, methods=["GET"]),
            Route("/v2/models/{model}/ready", self._model_ready, methods=["GET"]),
            Route("/v2/health/ready", self._ready, methods=["GET"]),
            Route("/v2/repository/index", self._index, methods=["GET", "POST"]),
            Route("/v2/repository/models/{model}/load", self._load, methods=["POST"]),
            Route("/v2/repository/models/{model}/unload", self._unload, methods=["POST"]),
        ]

    def _infer_route(self, protocol: Protocol) -> InferRoute:
        return InferRoute(
            self.service,
            protocol,
            pod_name=self.settings.name,
            most_body_bytes=self.settings.max_body_bytes,
            allow_simulated_work=self.settings.allow_simulated_work,
        )

    async def _ready(self, request: Request) -> Response:
        """Ready only while the pod is registered and takes requests."""
        del request
        is_ready = self.health.is_ready
        return _json({"ready": is_ready}, HTTPStatus.OK if is_ready else _UNAVAILABLE)

    async def _model_ready(self, request: Request) -> Response:
        """Whether the model is on this pod's device."""
        segment = request.path_params["model"]
        name = ModelName.from_path_segment(segment)
        is_ready = any(self.store.holds(key) for key in self._keys(name))
        if not is_ready and self.declared.record(name) is None:
            return _error(ModelNotFound(f"model {name} is not declared"))
        return _json(
            {"name": segment, "ready": is_ready}, HTTPStatus.OK if is_ready else _UNAVAILABLE
        )

    async def _index(self, request: Request) -> Response:
        """All declared models and what this pod has of them."""
        del request
        return _json([self._index_entry(name) for name in self.declared.names()])

    def _index_entry(self, name: ModelName) -> dict[str, Any]:
        record = self.declared.record(name)
        keys = self._keys(name)
        if any(self.store.holds(key) for key in keys):
            state = "READY"
        elif any(self.loads.is_loading(key) for key in keys):
            state = "LOADING"
        else:
            state = "UNAVAILABLE"
        failure = record.failure if record is not None else None
        return {
            "name": name.path_segment,
            "version": record.spec.generation if record is not None else "",
            "state": state,
            "reason": failure.message if failure is not None else "",
        }

    async def _load(self, request: Request) -> Response:
        """Bring a model to the device."""
        segment = request.path_params["model"]
        try:
            spec = await self.declared.find(ModelName.from_path_segment(segment), None)
            await self.loads.preload(spec, ClaimScope.POD)
        except RuntimePackageError as error:
            return _error(error)
        return _json({"name": segment, "load": True})

    async def _unload(self, request: Request) -> Response:
        """Take a model off the device once nobody uses it; its files stay on disk."""
        segment = request.path_params["model"]
        name = ModelName.from_path_segment(segment)
        keys = [key for key in self._keys(name) if self.store.holds(key)]
        if not keys and self.declared.record(name) is None:
            return _error(ModelNotFound(f"model {name} is not declared"))
        try:
            async with asyncio.timeout(UNLOAD_PATIENCE_S):
                for key in keys:
                    await self.store.retire(key, "unload")
                    await self.store.wait_gone(key)
        except TimeoutError:
            return _json({"error": f"{name} is still in use"}, _UNAVAILABLE)
        return _json({"name": segment, "unload": True})

    def _keys(self, name: ModelName) -> list[str]:
        """Every generation of a model that is declared or on the device."""
        prefix = f"{name}@"
        keys = [key for key in self.store.resident_keys() if key.startswith(prefix)]
        record = self.declared.record(name)
        if record is not None:
            keys += [spec.key for spec in (record.spec, record.previous) if spec is not None]
        return sorted(set(keys))


_UNAVAILABLE = HTTPStatus.SERVICE_UNAVAILABLE


def _json(document: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def _error(error: RuntimePackageError) -> Response:
    status, body, headers = error_response(error)
    return Response(body, status, headers=dict(headers))
