"""The pod's HTTP routes, profiling included. They precede KServe's own and replace equal paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, fields
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from common.inference_protocol import BodyTooLarge, InvalidRequest, PodError
from common.inference_protocol.bodies import BINARY_TYPE, parse_object
from common.inference_protocol.encodings import raw_view
from common.inference_protocol.tensors import BF16, MAX_IDENTITIES
from common.shown_value import kind_of, shown
from registry.domain.model import ModelName, Tier
from registry.domain.pod import Profile
from registry.domain.pod_state import ANY_COPIES
from registry.domain.records import profile_document
from runtime.errors import InferenceFailed, ModelNotFound
from runtime.inference_request import WireProtocol
from runtime.profiling import ProfilePlan, Profiler
from runtime.protocols.asgi_app import ErrorForm, InferRoute, error_response, kserve_error
from runtime.serving.in_flight import RequestAborted, while_connected
from runtime.serving.predict_service import PredictService
from runtime.serving.repository import (
    EXTENSIONS,
    SERVER_NAME,
    Health,
    ModelCatalog,
    Repository,
    server_version,
)
from runtime.serving.tensor_store import TensorStore
from runtime.threads import in_thread

Handler = Callable[[Request], Awaitable[Response]]

LOADABLE: Final = (Tier.DISK, Tier.HOST, Tier.DEVICE)
_MAX_COPIES: Final = 1_000_000
_MAX_DUE_MS: Final = 3_600_000
MAX_JSON_BYTES = 64 * 1024
"""Longest body of a request to the repository, or for a profile."""


@dataclass(frozen=True, slots=True)
class Routes:
    """All routes of V1 and V2 that KServe's SDK does not serve for the pod."""

    service: PredictService
    repository: Repository
    health: Health
    max_body_bytes: int

    def table(self) -> list[Route]:
        v1_model, v2_model = "/v1/models/{model}", "/v2/models/{model}"
        v2_version = f"{v2_model}/versions/{{version}}"
        repository = "/v2/repository"
        v1_infer, v2_infer = map(self._infer_route, (WireProtocol.V1, WireProtocol.V2))
        handlers: list[tuple[str, str, Handler]] = [
            ("POST", f"{v1_model}:explain", self._explain),
            ("GET", f"{v1_model}:explain", _post_only),
            ("GET", f"{v1_model}:predict", _post_only),
            ("GET", v1_model, self._model_ready),
            ("GET", f"{v2_model}/ready", self._model_ready),
            ("GET", f"{v2_version}/ready", self._model_ready),
            ("GET", v2_version, self._metadata),
            ("GET", v2_model, self._metadata),
            ("GET", "/v1/models", self._models),
            ("GET", "/v2/models", self._models),
            ("GET", "/v2", self._server),
            ("GET", "/v2/health/live", self._live),
            ("GET", "/v2/health/ready", self._ready),
            ("GET POST", f"{repository}/index", self._index),
            ("POST", f"{repository}/models/{{model}}/versions/{{version}}/check", self._check),
            ("POST", f"{repository}/models/{{model}}/load", self._load),
            ("POST", f"{repository}/models/{{model}}/unload", self._unload),
        ]
        return [
            Route(f"{v1_model}:predict", v1_infer, methods=["POST"]),
            Route(f"{v2_model}/infer", v2_infer, methods=["POST"]),
            Route(f"{v2_version}/infer", v2_infer, methods=["POST"]),
            *(
                Route(path, _with_errors(handler), methods=methods.split())
                for methods, path, handler in handlers
            ),
        ]

    def _infer_route(self, protocol: WireProtocol) -> InferRoute:
        return InferRoute(self.service, self.repository, protocol, self.max_body_bytes)

    # Health

    async def _live(self, request: Request) -> Response:
        return _json({"live": self.health.is_live}, _status(is_good=self.health.is_live))

    async def _ready(self, request: Request) -> Response:
        return _json({"ready": self.health.is_ready}, _status(is_good=self.health.is_ready))

    async def _model_ready(self, request: Request) -> Response:
        segment = request.path_params["model"]
        is_ready = await self.repository.is_ready(segment, request.path_params.get("version", ""))
        return _json({"name": segment, "ready": is_ready}, _status(is_good=is_ready))

    # Metadata

    async def _server(self, request: Request) -> Response:
        return _json({"name": SERVER_NAME, "version": server_version(), "extensions": EXTENSIONS})

    async def _models(self, request: Request) -> Response:
        """All declared models: a pod serves each of them."""
        return _json({"models": self.repository.names()})

    async def _metadata(self, request: Request) -> Response:
        parameters = request.path_params
        return _json(
            asdict(
                await self.repository.metadata(parameters["model"], parameters.get("version", ""))
            )
        )

    async def _explain(self, request: Request) -> Response:
        """No model has an explainer: 501 for a model on the device, else 404, like KServe's SDK."""
        segment = request.path_params["model"]
        if not await self.repository.is_ready(segment):
            raise ModelNotFound(f"model {segment} is not on this pod")
        document = {"error": f"model {segment} has no explainer"}
        return _json(document, HTTPStatus.NOT_IMPLEMENTED)

    # The repository extension

    async def _index(self, request: Request) -> Response:
        """All declared models with their state; with `ready`, only those that are loaded."""
        document = await read_json(request)
        ready_only = document.get("ready", False)
        if not isinstance(ready_only, bool):
            raise InvalidRequest(f"'ready' must be true or false, was {kind_of(ready_only)}")
        return _json([asdict(each) for each in self.repository.index(ready_only=ready_only)])

    async def _check(self, request: Request) -> Response:
        """Read a model's small files and the headers of its weights; load nothing."""
        segment, version = request.path_params["model"], request.path_params["version"]
        await self.repository.check(segment, version)
        return _json({"name": segment, "version": version, "readable": True})

    async def _load(self, request: Request) -> Response:
        """Load a model to the device, or to the tier that the parameters name."""
        parameters = (await read_json(request)).get("parameters") or {}
        tier, copies, is_withdrawable, due_in_s = _parse_load(parameters)
        segment = request.path_params["model"]
        loading = self.repository.load(
            segment, tier, copies, is_withdrawable=is_withdrawable, due_in_s=due_in_s
        )
        try:  # a withdrawable one ends when its client disconnects, unless others want it
            await (while_connected(request.receive, loading) if is_withdrawable else loading)
        except RequestAborted:
            raise InvalidRequest("the client withdrew the load") from None
        return _json({"name": segment, "load": True})

    async def _unload(self, request: Request) -> Response:
        segment = request.path_params["model"]
        await self.repository.unload(segment)
        return _json({"name": segment, "unload": True})


def _parse_load(parameters: Any) -> tuple[Tier, int, bool, float | None]:
    """Tier, limit of other pods' copies, whether it is withdrawable, and when it is needed.

    Raises InvalidRequest.
    """
    allowed = {"tier", "max_other_copies", "withdrawable", "due_ms"}
    if not isinstance(parameters, dict) or parameters.keys() - allowed:
        raise InvalidRequest(
            "a load cannot change a model's declaration: 'parameters' may hold only 'tier'"
            f" ({', '.join(LOADABLE)}), 'max_other_copies', 'withdrawable' and 'due_ms', was"
            f" {shown(parameters)}"
        )
    is_withdrawable = parameters.get("withdrawable", False)
    if not isinstance(is_withdrawable, bool):
        raise InvalidRequest(f"'withdrawable' must be true or false, was {shown(is_withdrawable)}")
    due_ms = parameters.get("due_ms")
    if due_ms is not None and (type(due_ms) not in (int, float) or not 0 <= due_ms <= _MAX_DUE_MS):
        raise InvalidRequest(
            f"'due_ms' must be a number from 0 to {_MAX_DUE_MS}, was {shown(due_ms)}"
        )
    if due_ms is not None and not is_withdrawable:
        raise InvalidRequest("'due_ms' is for loads with 'withdrawable': true")
    copies = parameters.get("max_other_copies", ANY_COPIES)
    if type(copies) is not int or not ANY_COPIES <= copies <= _MAX_COPIES:
        raise InvalidRequest(
            f"'max_other_copies' must be an integer from -1 (any number) to {_MAX_COPIES},"
            f" was {shown(copies)}"
        )
    tier = parameters.get("tier", Tier.DEVICE.value)
    for each in LOADABLE:
        if tier == each.value:
            return each, copies, is_withdrawable, None if due_ms is None else due_ms / 1000
    raise InvalidRequest(f"'tier' must be one of {', '.join(LOADABLE)}, was {shown(tier)}")


async def _post_only(request: Request) -> Response:
    raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": "POST"})


def _with_errors(handler: Handler) -> Handler:
    """The handler, with the runtime's errors as responses."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except PodError as error:
            return error_as_response(error)

    return handle


def error_as_response(error: PodError, form: ErrorForm = kserve_error) -> Response:
    status, body, headers = error_response(error, form)
    return Response(body, status, headers=dict(headers))


async def read_json(request: Request) -> dict[str, Any]:
    """The body's JSON object, {} for an empty body; raises InvalidRequest, BodyTooLarge."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_JSON_BYTES:
                raise BodyTooLarge(f"the body may have {MAX_JSON_BYTES} bytes")
    except ClientDisconnect:
        raise InvalidRequest("the client disconnected before the end of its body") from None
    return parse_object(bytes(body)) if body else {}


def _status(*, is_good: bool) -> HTTPStatus:
    return HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE


def _json(document: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


RANGES = {
    "most_rows": (1, 1024),
    "tokens": (1, 100_000),
    "repeats": (1, 100),
    "share_pct": (0, 100),
    "is_stored": (0, 1),
}


def profile_route(profiler: Profiler, catalog: ModelCatalog) -> Route:
    """The route; its body may hold the fields of `ProfilePlan`."""

    async def handle(request: Request) -> Response:
        plan = parse_plan(await read_json(request))
        name = ModelName.from_path_segment(request.path_params["model"])
        spec = await catalog.find(name, None)
        try:
            profile = await profiler.profile(spec, plan)
        except (RuntimeError, ValueError, TypeError) as error:  # what networks raise
            raise InferenceFailed(f"the model cannot be profiled: {error}") from error
        share_pct = profiler.measured_share(plan)
        return _json(to_document(profile) | ({"share_pct": share_pct} if share_pct else {}))

    return Route("/v2/models/{model}/profile", _with_errors(handle), methods=["POST"])


def parse_plan(body: Mapping[str, Any]) -> ProfilePlan:
    """The plan of a request body; raises InvalidRequest."""
    known = [field.name for field in fields(ProfilePlan)]
    for name, value in body.items():
        if name not in known:
            raise InvalidRequest(f"the body may hold {', '.join(known)}, held {name!r}")
        low, high = RANGES[name]
        if type(value) is not int or not low <= value <= high:
            raise InvalidRequest(f"{name!r} must be {low} to {high}, was {shown(value)}")
    return ProfilePlan(**body)


def to_document(profile: Profile) -> dict[str, Any]:
    """A profile as JSON, with its throughput and best batch size."""
    points = [
        {**asdict(point), "rows_per_s": round(point.rows_per_s, 2)} for point in profile.points
    ]
    return {**profile_document(profile), "points": points, "best_rows": profile.best_rows}


# Tensors that the pod keeps for runs of workflows: read by other pods, freed by schedulers.
#
# Like all routes of a pod they need the pods' shared secret, where there is one.


_RUN: Final = "/v2/tensors/{namespace}/{run}"


def tensor_routes(store: TensorStore, threads: Executor) -> list[Route]:
    async def read(request: Request) -> Response:
        """The raw bytes of tensors, one after the other, or 404."""
        names = request.path_params
        identities = names["identities"].split(",", MAX_IDENTITIES)
        if len(identities) > MAX_IDENTITIES:
            error = f"at most {MAX_IDENTITIES} tensors can be read at once"
            return _json({"error": error}, HTTPStatus.BAD_REQUEST)
        run = names["namespace"], names["run"]
        found = [store.find(*run, each) for each in identities]
        tensors = [tensor for tensor in found if tensor is not None]
        if len(tensors) < len(found):
            error = "the pod does not keep this tensor (any more)"
            return _json({"error": error}, HTTPStatus.NOT_FOUND)
        if all(tensor.datatype != BF16 for tensor in tensors):
            return _BuffersResponse([raw_view(tensor) for tensor in tensors])
        return _BuffersResponse(await in_thread(threads, lambda: list(map(raw_view, tensors))))

    async def present(request: Request) -> Response:
        """Which of the tensors that the query names are kept."""
        run = request.path_params["namespace"], request.path_params["run"]
        asked = request.query_params.getlist("identity")
        kept = [each for each in asked if store.find(*run, each) is not None]
        return _json({"kept": kept})

    async def drop(request: Request) -> Response:
        """Free tensors of a run: those that are named, or all."""
        names = request.path_params
        identities = names["identities"].split(",") if "identities" in names else None
        return _json({"dropped": store.drop(names["namespace"], names["run"], identities)})

    return [
        Route(f"{_RUN}/{{identities}}", read, methods=["GET"]),
        Route(f"{_RUN}/{{identities}}", drop, methods=["DELETE"]),
        Route(_RUN, present, methods=["GET"]),
        Route(_RUN, drop, methods=["DELETE"]),
    ]


class _BuffersResponse(Response):
    """Buffers as one body; none is copied."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        length = sum(map(len, buffers))
        super().__init__(media_type=BINARY_TYPE, headers={"content-length": str(length)})
        self._buffers = buffers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for buffer in self._buffers:
            await send({"type": "http.response.body", "body": buffer, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
