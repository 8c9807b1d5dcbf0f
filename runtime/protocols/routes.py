"""The pod's HTTP routes. They come before KServe's own and shadow those of the same path."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response
from starlette.routing import Route

from registry.domain.model import Tier
from runtime.errors import BodyTooLarge, InvalidRequest, RuntimePackageError
from runtime.protocols.infer_route import InferRoute
from runtime.protocols.response import error_answer
from runtime.serving.repository import EXTENSIONS, SERVER_NAME, server_version
from runtime.wire.bodies import WireProtocol
from runtime.wire.v2 import read_object

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from runtime.serving.health import Health
    from runtime.serving.predict_service import PredictService
    from runtime.serving.repository import Repository
    from runtime.settings import RuntimeSettings

    Handler = Callable[[Request], Awaitable[Response]]

LOADABLE: Final = (Tier.DISK, Tier.HOST, Tier.DEVICE)
MOST_ORDER_BYTES = 64 * 1024
"""Longest body of a request to the repository."""


@dataclass(frozen=True, slots=True)
class Routes:
    """Everything the pod answers itself, beside what KServe's SDK answers."""

    settings: RuntimeSettings
    service: PredictService
    repository: Repository
    health: Health

    def table(self) -> list[Route]:
        """The routes, to be put before KServe's."""
        v2_model, repository = "/v2/models/{model}", "/v2/repository"
        v2_version = v2_model + "/versions/{version}"
        v2_infer = self._infer_route(WireProtocol.V2)
        return [
            Route(
                "/v1/models/{model}:predict", self._infer_route(WireProtocol.V1), methods=["POST"]
            ),
            Route(f"{v2_model}/infer", v2_infer, methods=["POST"]),
            Route(f"{v2_version}/infer", v2_infer, methods=["POST"]),
            Route("/v1/models/{model}", _answering(self._model_ready), methods=["GET"]),
            Route(f"{v2_model}/ready", _answering(self._model_ready), methods=["GET"]),
            Route(f"{v2_version}/ready", _answering(self._model_ready), methods=["GET"]),
            Route(v2_version, _answering(self._metadata), methods=["GET"]),
            Route(v2_model, _answering(self._metadata), methods=["GET"]),
            Route("/v1/models", _answering(self._models), methods=["GET"]),
            Route("/v2/models", _answering(self._models), methods=["GET"]),
            Route("/v2", _answering(self._server), methods=["GET"]),
            Route("/v2/health/live", _answering(self._live), methods=["GET"]),
            Route("/v2/health/ready", _answering(self._ready), methods=["GET"]),
            Route(f"{repository}/index", _answering(self._index), methods=["GET", "POST"]),
            Route(f"{repository}/models/{{model}}/load", _answering(self._load), methods=["POST"]),
            Route(
                f"{repository}/models/{{model}}/unload", _answering(self._unload), methods=["POST"]
            ),
        ]

    def _infer_route(self, protocol: WireProtocol) -> InferRoute:
        return InferRoute(
            self.service,
            self.repository,
            protocol,
            pod_name=self.settings.name,
            most_body_bytes=self.settings.max_body_bytes,
            allow_simulated_work=self.settings.allow_simulated_work,
        )

    # Health

    async def _live(self, request: Request) -> Response:
        """Live while the event loop answers and the device has its thread."""
        del request
        return _json({"live": self.health.is_live}, _status(is_good=self.health.is_live))

    async def _ready(self, request: Request) -> Response:
        """Ready only while the pod is registered and takes requests."""
        del request
        return _json({"ready": self.health.is_ready}, _status(is_good=self.health.is_ready))

    async def _model_ready(self, request: Request) -> Response:
        """Whether the model is on this pod's device."""
        segment = request.path_params["model"]
        is_ready = await self.repository.is_ready(segment, request.path_params.get("version", ""))
        return _json({"name": segment, "ready": is_ready}, _status(is_good=is_ready))

    # Metadata

    async def _server(self, request: Request) -> Response:
        """What the server is and can do."""
        del request
        return _json({"name": SERVER_NAME, "version": server_version(), "extensions": EXTENSIONS})

    async def _models(self, request: Request) -> Response:
        """All declared models: each of them can be served."""
        del request
        return _json({"models": self.repository.names()})

    async def _metadata(self, request: Request) -> Response:
        """What a model takes and gives."""
        named = request.path_params
        return _json(
            asdict(await self.repository.metadata(named["model"], named.get("version", "")))
        )

    # The repository extension

    async def _index(self, request: Request) -> Response:
        """All declared models and what this pod has of them; `ready` leaves out the others."""
        document = await read_order(request)
        ready_only = document.get("ready", False)
        if not isinstance(ready_only, bool):
            raise InvalidRequest(f"'ready' must be true or false, was {type(ready_only).__name__}")
        return _json([asdict(each) for each in self.repository.index(ready_only=ready_only)])

    async def _load(self, request: Request) -> Response:
        """Bring a model to the device, or to the tier that the parameters name."""
        tier = _tier_of((await read_order(request)).get("parameters") or {})
        segment = request.path_params["model"]
        await self.repository.load(segment, tier)
        return _json({"name": segment, "load": True})

    async def _unload(self, request: Request) -> Response:
        """Take a model off the device once nobody uses it."""
        segment = request.path_params["model"]
        await self.repository.unload(segment)
        return _json({"name": segment, "unload": True})


def _tier_of(parameters: Any) -> Tier:
    """How near a model is to be brought; raises InvalidRequest."""
    if not isinstance(parameters, dict) or parameters.keys() - {"tier"}:
        raise InvalidRequest(
            "a model is loaded as it was declared: 'parameters' may have 'tier' and nothing else"
            f" ({', '.join(LOADABLE)}), was {str(parameters)[:100]}"
        )
    tier = parameters.get("tier", Tier.DEVICE.value)
    for each in LOADABLE:
        if tier == each.value:
            return each
    raise InvalidRequest(f"'tier' must be one of {', '.join(LOADABLE)}, was {tier!r}")


def _answering(handler: Handler) -> Handler:
    """The handler, with the runtime's errors as answers."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RuntimePackageError as error:
            return refused(error)

    return answer


def refused(error: RuntimePackageError) -> Response:
    """An error as an answer."""
    status, body, headers = error_answer(error)
    return Response(body, status, headers=dict(headers))


async def read_order(request: Request) -> dict[str, Any]:
    """The body's JSON object, empty where there is no body; raises InvalidRequest, BodyTooLarge."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_ORDER_BYTES:
            raise BodyTooLarge(f"the body may have {MOST_ORDER_BYTES} bytes")
    return read_object(bytes(body)) if body else {}


def _status(*, is_good: bool) -> HTTPStatus:
    return HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE


def _json(document: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")
