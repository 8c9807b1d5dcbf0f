"""The pod's servers: the Open Inference Protocol over gRPC, and what is kept of KServe's for HTTP.

KServe's own servicer fails every load and unload, and reports many errors as UNKNOWN. Handlers take
and return bytes here, so that a malformed message is INVALID_ARGUMENT and a large one is decoded in
a thread. A call that its client cancels is cancelled here, which frees its slot.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, TypeAlias

import grpc
import grpc.aio
from fastapi import FastAPI
from google.protobuf.unknown_fields import UnknownFieldSet
from kserve import ModelServer
from kserve.logging import logger as kserve_logger
from kserve.model_server import app as kserve_app
from kserve.protocol.rest.server import RESTServer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from common.http_server import HttpServer
from common.inference_protocol import InvalidRequest, PodError
from common.inference_protocol.grpc_messages import (
    INFERENCE,
    decode_message,
    messages,
    parse_message,
)
from common.pod_responses import MAX_DETAIL_CHARACTERS, MAX_NAME_CHARACTERS, code_of
from common.pod_secret import HEADER, PodSecret
from common.tls import PartTls
from runtime.errors import Unauthorized
from runtime.inference_request import DecodedBody, RequestHead, WireProtocol, parse_request_head
from runtime.metrics import REQUESTS
from runtime.protocols.asgi_app import (
    REFUSAL,
    PodApplication,
    error_headers,
    error_status,
    provenance_headers,
    stage_of,
)
from runtime.serving.predict_service import PredictService
from runtime.serving.remote_inference import RemoteRefused
from runtime.serving.repository import EXTENSIONS, SERVER_NAME, Health, Repository, server_version
from runtime.settings import KSERVE_GRPC_PORT
from runtime.threads import SMALL_BODY_BYTES, in_thread

Context: TypeAlias = grpc.aio.ServicerContext
Method: TypeAlias = Callable[[bytes, Context], Awaitable[bytes]]

logger = logging.getLogger(__name__)

OPEN_METHODS = frozenset({"ServerLive", "ServerReady"})
"""Probes, which need no secret."""
TRITON_NAME_FIELD = 2
"""Triton's clients send the name of a model to load in a field that KServe's message lacks."""


MAX_CALLS_WITHOUT_SLOT = 64
"""Calls that take no slot: health, metadata, loads, and refused requests."""
MESSAGE_OVERHEAD_BYTES = 1024**2
"""For a message's other fields than tensors; without it, a body of the maximum size is refused."""


class GrpcServer:
    """Serves on the event loop that starts it."""

    def __init__(
        self, handler: grpc.GenericRpcHandler, *, max_body_bytes: int, slots: int, tls: PartTls
    ) -> None:
        self._tls = tls
        self._server = grpc.aio.server(
            handlers=[handler],
            options=[
                ("grpc.max_receive_message_length", max_body_bytes + MESSAGE_OVERHEAD_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # two pods on one port would share its clients
            ],
            maximum_concurrent_rpcs=slots + MAX_CALLS_WITHOUT_SLOT,
        )

    async def start(self, host: str, port: int) -> int:
        """Serve; returns the port. If KServe's default port is taken, a free one is used."""
        bound = self._bind(host, port)
        await self._server.start()
        logger.info("gRPC server listens", extra={"host": host, "port": bound})
        return bound

    def _bind(self, host: str, port: int) -> int:
        address = f"[{host}]" if ":" in host else host
        try:
            return self._add_port(f"{address}:{port}")
        except RuntimeError:
            if port != KSERVE_GRPC_PORT:
                raise
        logger.info("gRPC port is taken, using a free one", extra={"port": port})
        return self._add_port(f"{address}:0")

    def _add_port(self, address: str) -> int:
        if self._tls.server is None:
            return int(self._server.add_insecure_port(address))
        credentials = grpc.dynamic_ssl_server_credentials(self._certificate(), self._certificate)
        return int(self._server.add_secure_port(address, credentials))

    def _certificate(self) -> grpc.ServerCertificateConfiguration:
        """Asked for at each handshake."""
        return grpc.ssl_server_certificate_configuration([self._tls.key_and_chain])

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and cancel the calls that remain after `grace_s`."""
        await self._server.stop(grace_s)


@dataclass(frozen=True, slots=True)
class InferenceService:
    service: PredictService
    repository: Repository
    health: Health
    secret: PodSecret

    def handler(self) -> grpc.GenericRpcHandler:
        unary = {
            "ServerLive": (messages.ServerLiveRequest, self._server_live),
            "ServerReady": (messages.ServerReadyRequest, self._server_ready),
            "ModelReady": (messages.ModelReadyRequest, self._model_ready),
            "ServerMetadata": (messages.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": (messages.ModelMetadataRequest, self._model_metadata),
            "RepositoryModelLoad": (messages.RepositoryModelLoadRequest, self._load),
            "RepositoryModelUnload": (messages.RepositoryModelUnloadRequest, self._unload),
        }
        methods: dict[str, Method] = {"ModelInfer": self._model_infer}
        methods |= {name: _with_messages(kind, method) for name, (kind, method) in unary.items()}
        return grpc.method_handlers_generic_handler(
            INFERENCE,
            {
                name: grpc.unary_unary_rpc_method_handler(self._with_errors(name, method))
                for name, method in methods.items()
            },
        )

    def _with_errors(self, name: str, method: Method) -> Method:
        """The method, with errors as status codes."""

        async def handle(content: bytes, context: Context) -> bytes:
            try:
                if name not in OPEN_METHODS:
                    self._check_secret(context)
                return await method(content, context)
            except Exception as error:
                status, detail, metadata = _refusal(error)
            if name == "ModelInfer":
                stage = stage_of(_metadata_of(context))
                REQUESTS.labels(stage=stage, status=str(int(status))).inc()
            # Without `abort`: the context keeps its error, which would be a cycle.
            context.set_code(grpc.StatusCode[code_of(status)])
            context.set_details(detail[:MAX_DETAIL_CHARACTERS])
            context.set_trailing_metadata((*metadata, ("x-pilotlight-pod", self.service.pod_name)))
            return b""

        return handle

    def _check_secret(self, context: Context) -> None:
        if self.secret.is_required:
            given = _metadata_of(context).get(HEADER)
            if not self.secret.accepts(None if given is None else given.encode()):
                raise Unauthorized(REFUSAL)

    # Health and metadata

    async def _server_live(self, _: Any) -> Any:
        return messages.ServerLiveResponse(live=self.health.is_live)

    async def _server_ready(self, _: Any) -> Any:
        return messages.ServerReadyResponse(ready=self.health.is_ready)

    async def _model_ready(self, request: Any) -> Any:
        model = _checked_name(request.name)
        is_ready = await self.repository.is_ready(model, request.version)
        return messages.ModelReadyResponse(ready=is_ready)

    async def _server_metadata(self, _: Any) -> Any:
        return messages.ServerMetadataResponse(
            name=SERVER_NAME, version=server_version(), extensions=EXTENSIONS
        )

    async def _model_metadata(self, request: Any) -> Any:
        metadata = await self.repository.metadata(_checked_name(request.name), request.version)
        return messages.ModelMetadataResponse(
            name=metadata.name,
            versions=metadata.versions,
            platform=metadata.platform,
            inputs=metadata.inputs,
            outputs=metadata.outputs,
        )

    # The repository extension

    async def _load(self, request: Any) -> Any:
        model = _name_to_load(request)
        await self.repository.load(model)
        return messages.RepositoryModelLoadResponse(model_name=model, isLoaded=True)

    async def _unload(self, request: Any) -> Any:
        model = _name_to_load(request)
        await self.repository.unload(model)
        return messages.RepositoryModelUnloadResponse(model_name=model, isUnloaded=True)

    # Inference

    async def _model_infer(self, content: bytes, context: Context) -> bytes:
        metadata = _metadata_of(context)
        if len(content) <= SMALL_BODY_BYTES:
            model, version, body = _decode_call(content)
        else:
            model, version, body = await in_thread(self.service.threads, _decode_call, content)
        head = _parse_head(model, metadata, context.time_remaining())
        self.service.in_flight.check_admission(head)
        if version:
            spec = await self.repository.find(model, version)
            head = replace(head, generation=spec.generation)
        try:
            response = await self.service.predict(head, WireProtocol.GRPC_V2, body)
        except asyncio.CancelledError:
            REQUESTS.labels(stage=stage_of(metadata), status="gone").inc()
            raise
        REQUESTS.labels(stage=stage_of(metadata), status=str(int(HTTPStatus.OK))).inc()
        context.set_trailing_metadata(
            (
                *provenance_headers(response),
                ("x-pilotlight-pod", self.service.pod_name),
                ("x-request-id", head.id),
            )
        )
        return response.body.content


def _parse_head(model: str, metadata: Mapping[str, str], remaining_s: float | None) -> RequestHead:
    """The request's head with the earlier of the client's two deadlines."""
    head = parse_request_head(model, metadata)
    if remaining_s is None:
        return head
    deadline_s = time.monotonic() + remaining_s
    return replace(head, deadline_s=min(deadline_s, head.deadline_s or math.inf))


def _with_messages(kind: Any, method: Callable[[Any], Awaitable[Any]]) -> Method:
    """A method on bytes from one that takes a message of class `kind` and returns a message."""

    async def handle(content: bytes, _: Context) -> bytes:
        response: bytes = (await method(parse_message(kind, content))).SerializeToString()
        return response

    return handle


def _decode_call(content: bytes) -> tuple[str, str, DecodedBody]:
    """Model, version and body of a `ModelInferRequest`."""
    message = parse_message(messages.ModelInferRequest, content)
    body = DecodedBody(v2=decode_message(message), protocol=WireProtocol.GRPC_V2)
    return _checked_name(message.model_name), message.model_version, body


def _checked_name(name: str) -> str:
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise InvalidRequest(
            f"the model's name must have 1 to {MAX_NAME_CHARACTERS} characters, has {len(name)}"
        )
    return name


def _name_to_load(request: Any) -> str:
    """The model of a load or unload request, from KServe's field or from Triton's."""
    name = str(request.model_name)
    for field in UnknownFieldSet(request):
        if not name and field.field_number == TRITON_NAME_FIELD and isinstance(field.data, bytes):
            name = field.data.decode("utf-8", "replace")
    return _checked_name(name)


def _metadata_of(context: Context) -> dict[str, str]:
    """The call's metadata as headers, without binary values."""
    pairs = context.invocation_metadata() or ()
    return {str(name): value for name, value in pairs if isinstance(value, str)}


def _refusal(error: Exception) -> tuple[int, str, Sequence[tuple[str, str]]]:
    """Status, message and metadata of an error."""
    if not isinstance(error, (PodError, RemoteRefused)):
        logger.error("call failed with an unexpected error", exc_info=error)
        return HTTPStatus.INTERNAL_SERVER_ERROR, repr(error), ()
    return error_status(error), str(error), error_headers(error)


# The pod's face: KServe's `ModelServer`, and all that is emptied or replaced of it, with reasons.
#
# Kept: its FastAPI application with `/`, `/metrics`, its error handlers and every route that the
# pod has no own one for, its histograms, its gRPC port and time of keep-alive.
#
# - Its command line, which importing it parses, is cut off before (`__main__`, `forkserver`).
# - Its configuration of logging, which would replace the pod's, is kept off by a handler.
# - `start` is not called: it binds 0.0.0.0 where pods share a host, takes the signals that end the
#   pod's parts in order, and starts processes, which would each have a device.
# - Its middleware is left out: it writes two lines for each request, beside uvicorn's two.
# - Its routes of inference, models and the repository come after the pod's: they run a model in the
#   event loop, and know no cold models, slots, deadlines or binary tensors.
# - Inference passes the framework by (`PodApplication`): its five layers cost seven times as much.
# - Its gRPC server is replaced: it fails every load, and errors are UNKNOWN.
# - Its answer to an unknown path has the form of its other errors.


KEEP_ALIVE_S = 65
CLOSE_TIMEOUT_S = 5
BACKLOG = 1024


class PodRestServer(RESTServer):  # type: ignore[misc]  # kserve ships no types
    def _add_middlewares(self, app: FastAPI) -> None:
        """Add none."""


class PodServer(ModelServer):  # type: ignore[misc]  # kserve ships no types
    """KServe's model server in one process with one event loop; `routes` come before KServe's."""

    def __init__(self, routes: Sequence[Route], secret: PodSecret, tls: PartTls) -> None:
        if not kserve_logger.handlers:  # with a handler, KServe does not reconfigure all logging
            kserve_logger.addHandler(logging.NullHandler())
        super().__init__(http_port=0, workers=1, enable_grpc=False, enable_latency_logging=False)
        rest = PodRestServer(
            "kserve.model_server:app", self.dataplane, self.model_repository_extension, 0
        )
        rest.create_application()
        kserve_app.add_exception_handler(HTTPException, _http_error)
        for route in reversed(routes):
            kserve_app.router.routes.insert(0, route)
        self._server = HttpServer(
            PodApplication(kserve_app, routes, secret),
            tls=tls.server,
            keep_alive_s=KEEP_ALIVE_S,
            drain_s=CLOSE_TIMEOUT_S,
            interface="asgi3",
        )

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `close`."""
        await self._server.serve(sockets=[listener])

    def close(self) -> None:
        """Stop accepting and let `serve` return."""
        self._server.stop()


async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
    """The response to an unknown path or method, in the form of KServe's errors."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 selects a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener
