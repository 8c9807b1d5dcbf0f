"""V2 inference over gRPC: each call is a client's request of the application, its message the body.

Messages are forwarded as they are: pods read and write them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote

import orjson
from google.protobuf.message import DecodeError
from starlette.types import Message

from common.content_coding import unpack
from common.grpc.call import INTERNAL, RESOURCE_EXHAUSTED, Call
from common.grpc.frames import may_be_sent
from common.grpc.http2 import CreateCall, GrpcConnection
from common.grpc.server import serving
from common.http_headers import HOP_BY_HOP, Headers, read_lines
from common.inference_protocol.grpc_messages import INFERENCE, messages
from common.pod_responses import MAX_DETAIL_CHARACTERS, MAX_NAME_CHARACTERS, code_of
from common.shown_value import shown
from gateway.app import GatewayApp
from gateway.errors import BadRequest, GatewayError
from gateway.http.error_responses import body_and_headers
from gateway.http.headers import MAX_DEADLINE_MS, PROTOBUF, KnownHead
from gateway.http.routes import parse_path, target_of
from gateway.http.targets import ModelTarget
from gateway.request_task import RequestRun
from gateway.settings import GatewaySettings
from registry.domain.model import ModelName

logger = logging.getLogger(__name__)

_CODES: Final = {
    "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5, "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9, "UNIMPLEMENTED": 12, "INTERNAL": 13,
    "UNAVAILABLE": 14, "UNAUTHENTICATED": 16,
}  # fmt: skip
_MODEL_NAMES: Final = (b"mm-vmodel-id", b"mm-model-id")
"""Of ModelMesh's clients; before the message's own field."""
_OVERHEAD_BYTES: Final = 1 << 20
"""Of a message beside a body; without it, a body of the maximum size is refused."""
_DEADLINE: Final = b"x-pilotlight-deadline-ms"
_DROPPED: Final = frozenset((*_MODEL_NAMES, b"content-type", b"content-length", b"te", b"host"))
_VALUE: Final = re.compile(rb"[\x20-\x7e]*")
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


def pairs_of(headers: Headers) -> Headers:
    """A call's metadata, without binary values. Raises BadRequest."""
    pairs = [
        (name, value)
        for name, value in headers
        if not name.startswith((b":", b"grpc-")) and not name.endswith(b"-bin")
    ]
    for name, value in pairs:
        if not _VALUE.fullmatch(value):
            raise BadRequest(
                f"metadata {name.decode('latin-1')} must be visible ASCII, was {shown(value)}"
            )
    return pairs


def host_of(headers: Headers) -> bytes:
    """The call's `:authority`, which is what a Host is over HTTP."""
    return dict(headers).get(b":authority", b"")


def remaining_s(headers: Headers) -> float | None:
    """The call's time, by its `grpc-timeout`; None: it has no valid one."""
    found = _TIMEOUT.fullmatch(dict(headers).get(b"grpc-timeout", b""))
    return int(found[1]) * _UNITS_S[found[2]] if found else None


def request_headers(pairs: Headers, *, size: int, remaining_s: float | None) -> Headers:
    """The headers of the request at the gateway, with the earlier of the call's two deadlines."""
    headers = [(name, value) for name, value in pairs if name not in _DROPPED]
    headers += [(b"content-type", PROTOBUF), (b"content-length", b"%d" % size)]
    if remaining_s is not None:
        given_ms = [float(value) for name, value in headers if name == _DEADLINE and _is_ms(value)]
        deadline_ms = min([max(remaining_s * 1000, 0.001), *given_ms, MAX_DEADLINE_MS])
        headers.append((_DEADLINE, b"%.3f" % deadline_ms))
    return headers


def _is_ms(value: bytes) -> bool:
    try:
        return float(value) > 0
    except ValueError:
        return False


def model_path(pairs: Headers, named: str, path: str) -> str:
    """The path of a model's resource; `named`: by the message, `NAME` or `NAMESPACE/NAME`.

    Raises BadRequest.
    """
    given = dict(pairs)
    by_metadata = next((given[each] for each in _MODEL_NAMES if given.get(each)), b"")
    text = by_metadata.decode() or named
    if not 0 < len(text) <= MAX_NAME_CHARACTERS:
        raise BadRequest(
            "the model's name, in model_name or the metadata mm-vmodel-id, must have 1 to"
            f" {MAX_NAME_CHARACTERS} characters, has {len(text)}"
        )
    model = ModelName.parse(text)
    name = quote(model.name, safe="")
    prefix = f"/serving/{quote(model.namespace, safe='')}/{name}" if "/" in text else ""
    return f"{prefix}/v2/models/{name}{path}"


def target_of_call(app: GatewayApp, path: str, host: bytes) -> ModelTarget:
    """The target of an inference path and a Host. Raises BadRequest, UndeclaredModel."""
    target = app.resolve_target(path.encode(), host)
    if target is None:
        return target_of(parse_path(path, host.decode(), app.pools.names))  # raises the error
    return target


class GrpcRequest:
    """An `InferenceClient`: its body is the call's message, its response is collected."""

    def __init__(self, target: ModelTarget, headers: Headers, content: bytes) -> None:
        self.target = target
        self.headers = headers
        self.head: KnownHead | None = None
        self.begun = self.proxy = None
        self.loop = asyncio.get_running_loop()
        self.run = RequestRun(self.loop)
        self.waited_s = 0.0
        self.keep_alive = True
        self.disconnected = False
        self.response_started = self.is_behind = False
        self.is_complete = True
        self.unread_bytes = 0
        self.on_disconnect: Callable[[], None] | None = None
        self.status = 0
        """The response's HTTP status; 0 without a response, or with a part of one."""
        self.metadata: Headers = []
        """The response's headers."""
        self._content = [content]
        self._status = 0
        self._parts: list[bytes] = []

    @property
    def body(self) -> bytes:
        """The response's body."""
        return b"".join(self._parts)

    @property
    def error(self) -> str:
        """The message of an error response."""
        try:
            return str(orjson.loads(self.body)["error"])
        except (ValueError, KeyError, TypeError):
            return f"the response had status {self.status}"

    def disconnect(self) -> None:
        """End the request: its client has cancelled the call, or its deadline passed."""
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()

    # As an `InferenceClient`

    def take_chunks(self) -> list[bytes]:
        chunks, self._content = self._content, []
        return chunks

    async def receive_chunks(self) -> list[bytes]:
        return self.take_chunks()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.response_started = True
        self.metadata = headers
        self._parts = [body]
        self.status = status

    def start_response(self, status: int, lines: bytes, length: bytes) -> None:
        self.response_started = True
        self._status = status
        self.metadata += read_lines(lines)

    def write_body(self, body: bytes, *, is_last: bool) -> None:
        self._parts.append(body)
        if is_last:
            self.status = self._status

    async def drain(self) -> None:
        """Return at once: the whole response is kept until it is sent as one message."""

    def abort_response(self, error: GatewayError, /) -> None:
        """Respond with the error: the call has got nothing of the response yet."""
        body, headers = body_and_headers(error, is_openai=False)
        headers += [pair for pair in self.metadata if pair[0] == b"x-request-id"]
        self.respond(int(error.status), headers, body)


Method = Callable[[bytes, "UnaryCall"], Coroutine[Any, Any, bytes]]

_NOT_SENT: Final = HOP_BY_HOP | {b"content-type", b"content-length"}


async def get(app: GatewayApp, path: str, headers: Headers) -> tuple[int, Headers, bytes]:
    """Status, headers and body of the HTTP API's response to a GET."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": "GET",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
    }
    sent: list[Message] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], sent[0]["headers"], b"".join(each.get("body", b"") for each in sent)


class CallFailed(Exception):
    """A call's answer is an error."""

    def __init__(self, status: int, message: str, metadata: Headers) -> None:
        super().__init__(message)
        self.status = status
        self.metadata = metadata


class UnaryCall(Call):
    """A call of one message, which a coroutine answers."""

    _content: bytes | None = None
    _packed: tuple[str, int] | None = None
    """Coding and maximum of the content, which is unpacked in a thread: it may be a bomb."""
    _task: asyncio.Task[None] | None = None

    def __init__(
        self, method: Method, connection: GrpcConnection, number: int, headers: Headers
    ) -> None:
        super().__init__(connection, number, headers)
        self._method = method
        self.metadata: Headers = []
        """Of its answer."""

    def on_message(self, content: bytes) -> None:
        self._content, self._packed = content, None

    @property
    def begun_bytes(self) -> int:
        return 0 if self.has_ended else len(self.received) + len(self._content or b"")

    def on_packed(self, content: bytes, coding: str, max_bytes: int) -> None:
        self._content, self._packed = content, (coding, max_bytes)

    def on_end(self) -> None:
        if self._content is None:
            self.finish(INTERNAL, "the call has no message")
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer(self._content))

    def on_over(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _answer(self, content: bytes) -> None:
        try:
            if self._packed is not None:
                try:
                    content = await asyncio.to_thread(unpack, content, *self._packed)
                except ValueError as error:
                    self._task = None
                    self.finish(RESOURCE_EXHAUSTED, f"the message {error}")
                    return
            answer = await self._method(content, self)
        except CallFailed as error:
            self._fail(error.status, str(error), error.metadata)
        except GatewayError as error:
            reason = [(b"x-pilotlight-reason", str(error.reason).encode())]
            self._fail(int(error.status), str(error), reason)
        except Exception:
            logger.exception("call failed unexpectedly")
            self._fail(500, "the gateway failed unexpectedly; see its log", [])
        else:
            self._task = None
            self.send(answer)
            self.finish(metadata=sent_metadata(self.metadata))

    def _fail(self, status: int, message: str, metadata: Headers) -> None:
        self._task = None
        code = _CODES[code_of(status)]
        self.finish(code, message[:MAX_DETAIL_CHARACTERS], sent_metadata(metadata))


def sent_metadata(metadata: Headers) -> Headers:
    """A response's headers as HTTP/2 has them, without those that are HTTP/1's or gRPC's own."""
    lowered = [(name.lower(), value) for name, value in metadata]
    return [
        pair
        for pair in lowered
        if pair[0] not in _NOT_SENT and pair[0][:5] != b"grpc-" and may_be_sent(pair[0])
    ]


class InferenceService:
    def __init__(self, app: GatewayApp) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[None]] = set()

    def calls(self) -> dict[bytes, CreateCall]:
        """By path."""
        unary: dict[str, Method] = {
            "ModelInfer": self._model_infer,
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
        }
        return {
            f"/{INFERENCE}/{name}".encode(): partial(UnaryCall, method)
            for name, method in unary.items()
        }

    # Inference

    async def _model_infer(self, content: bytes, call: UnaryCall) -> bytes:
        request = await self._infer(content, call)
        call.metadata = request.metadata
        return request.body

    async def _infer(self, content: bytes, call: UnaryCall) -> GrpcRequest:
        """The request with its response. Raises CallFailed, GatewayError."""
        pairs = pairs_of(call.headers)
        name = _parse(messages.ModelInferRequest, content).model_name
        target = target_of_call(self._app, model_path(pairs, name, "/infer"), host_of(call.headers))
        if name and "/" not in name and self._app.pools.names.has_alias(target.model, name):
            target = replace(target, name=name)
        headers = request_headers(pairs, size=len(content), remaining_s=remaining_s(call.headers))
        request = GrpcRequest(target, headers, content)
        work = asyncio.create_task(self._app.infer(request))
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            request.disconnect()
            raise
        if request.status != 200:
            raise CallFailed(request.status, request.error, request.metadata)
        return request

    # Health and metadata, as over HTTP

    async def _server_live(self, content: bytes, call: UnaryCall) -> bytes:
        return _encoded(messages.ServerLiveResponse(live=True))

    async def _server_ready(self, content: bytes, call: UnaryCall) -> bytes:
        return _encoded(messages.ServerReadyResponse(ready=self._app.is_ready))

    async def _server_metadata(self, content: bytes, call: UnaryCall) -> bytes:
        found = await self._get("/v2", call)
        return _encoded(messages.ServerMetadataResponse(**found))

    async def _model_ready(self, content: bytes, call: UnaryCall) -> bytes:
        request = _parse(messages.ModelReadyRequest, content)
        path = model_path(pairs_of(call.headers), request.name, "/ready")
        found = await self._get(path, call, allowed=(200, 503))
        return _encoded(messages.ModelReadyResponse(ready=found.get("ready", False)))

    async def _model_metadata(self, content: bytes, call: UnaryCall) -> bytes:
        request = _parse(messages.ModelMetadataRequest, content)
        path = model_path(pairs_of(call.headers), request.name, "")
        found = await self._get(path, call)
        fields = ("name", "versions", "platform", "inputs", "outputs")
        response = messages.ModelMetadataResponse(
            **{name: found[name] for name in fields if name in found}
        )
        return _encoded(response)

    async def _get(
        self, path: str, call: UnaryCall, *, allowed: tuple[int, ...] = (200,)
    ) -> dict[str, Any]:
        """The document at a path of the HTTP API, with the call's credentials.

        Raises CallFailed, GatewayError.
        """
        headers = [each for each in pairs_of(call.headers) if each[0] != b"host"]
        if host := host_of(call.headers):
            headers.append((b"host", host))
        status, _, body = await get(self._app, path, headers)
        document: dict[str, Any] = orjson.loads(body)
        if status not in allowed:
            raise CallFailed(status, str(document.get("error", "")), [])
        return document


def _parse(kind: Any, content: bytes) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise BadRequest(f"the message is not a {kind.DESCRIPTOR.name}: {error}") from error


def _encoded(message: Any) -> bytes:
    content: bytes = message.SerializeToString()
    return content


def server_options(app: GatewayApp, settings: GatewaySettings) -> dict[str, Any]:
    return {
        "host": settings.host,
        "max_message_bytes": settings.max_body_bytes + _OVERHEAD_BYTES,
        "drain_s": settings.drain_timeout,
        "budget": app.held_bodies,
    }


def serving_grpc(app: GatewayApp, settings: GatewaySettings) -> AbstractAsyncContextManager[None]:
    """V2 at `--grpc-port`. Raises OSError if the port is taken."""
    is_ready = dict.fromkeys(("", INFERENCE, "grpc.health.v1.Health"), lambda: app.is_ready)
    calls, options = InferenceService(app).calls(), server_options(app, settings)
    return serving(calls, is_ready, port=settings.grpc_port, **options)
