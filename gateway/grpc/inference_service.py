"""V2 inference over gRPC: each call is a client's request of the application, its message the body.

Messages are forwarded as they are: pods read and write them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

import grpc
import grpc.aio
import orjson
from google.protobuf.message import DecodeError
from starlette.types import Message

from common.inference_protocol.grpc_messages import INFERENCE, messages
from common.pod_responses import MAX_DETAIL_CHARACTERS, MAX_NAME_CHARACTERS, code_of
from common.shown_value import shown
from gateway.app import GatewayApp
from gateway.errors import BadRequest, GatewayError
from gateway.grpc.authority_relay import AUTHORITY_HEADER
from gateway.http.error_responses import body_and_headers
from gateway.http.headers import PROTOBUF, Headers, KnownHead
from gateway.http.routes import parse_path, target_of
from gateway.http.targets import ModelTarget
from gateway.request_task import RequestRun
from registry.domain.model import ModelName

_MODEL_NAMES: Final = (b"mm-vmodel-id", b"mm-model-id")
"""Of ModelMesh's clients; before the message's own field."""
_DEADLINE: Final = b"x-pilotlight-deadline-ms"
_DROPPED: Final = frozenset(
    (*_MODEL_NAMES, b"content-type", b"content-length", b"te", b"host", AUTHORITY_HEADER)
)
_VALUE: Final = re.compile(r"[\x20-\x7e]*")


def pairs_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> Headers:
    """Metadata as headers, without binary values. Raises BadRequest."""
    pairs = [
        (name, value)
        for name, value in metadata or ()
        if isinstance(value, str) and not name.startswith("grpc-")
    ]
    for name, value in pairs:
        if not _VALUE.fullmatch(value):
            raise BadRequest(f"metadata {name} must be visible ASCII, was {shown(value)}")
    return [(name.lower().encode(), value.encode()) for name, value in pairs]


def host_of(pairs: Headers) -> bytes:
    """The call's `:authority`, which is what a Host is over HTTP."""
    return dict(pairs).get(AUTHORITY_HEADER, b"")  # the last one is the relay's


def request_headers(pairs: Headers, *, size: int, remaining_s: float | None) -> Headers:
    """The headers of the request at the gateway, with the earlier of the call's two deadlines."""
    headers = [(name, value) for name, value in pairs if name not in _DROPPED]
    headers += [(b"content-type", PROTOBUF), (b"content-length", b"%d" % size)]
    if remaining_s is not None:
        given_ms = [float(value) for name, value in headers if name == _DEADLINE and _is_ms(value)]
        deadline_ms = min([max(remaining_s * 1000, 0.001), *given_ms])
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
        for line in lines.split(b"\r\n"):
            name, found, value = line.partition(b": ")
            if found:
                self.metadata.append((name, value))

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


Context: TypeAlias = grpc.aio.ServicerContext
Method: TypeAlias = Callable[[bytes, Context], Awaitable[bytes]]

_NOT_SENT: Final = frozenset((b"content-type", b"content-length", b"connection"))


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


class InferenceService:
    def __init__(self, app: GatewayApp) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[None]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        unary: dict[str, Method] = {
            "ModelInfer": self._model_infer,
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(_with_errors(method))
            for name, method in unary.items()
        }
        return grpc.method_handlers_generic_handler(INFERENCE, methods)

    # Inference

    async def _model_infer(self, content: bytes, context: Context) -> bytes:
        request = await self._infer(content, context)
        context.set_trailing_metadata(_metadata(request.metadata))
        return request.body

    async def _infer(self, content: bytes, context: Context) -> GrpcRequest:
        """The request with its response. Raises CallFailed, GatewayError."""
        pairs = pairs_of(context.invocation_metadata())
        name = _parse(messages.ModelInferRequest, content).model_name
        target = target_of_call(self._app, model_path(pairs, name, "/infer"), host_of(pairs))
        if name and "/" not in name and self._app.pools.names.has_alias(target.model, name):
            target = replace(target, name=name)
        headers = request_headers(pairs, size=len(content), remaining_s=context.time_remaining())
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

    async def _server_live(self, content: bytes, context: Context) -> bytes:
        return _encoded(messages.ServerLiveResponse(live=True))

    async def _server_ready(self, content: bytes, context: Context) -> bytes:
        return _encoded(messages.ServerReadyResponse(ready=self._app.is_ready))

    async def _server_metadata(self, content: bytes, context: Context) -> bytes:
        found = await self._get("/v2", context)
        return _encoded(messages.ServerMetadataResponse(**found))

    async def _model_ready(self, content: bytes, context: Context) -> bytes:
        request = _parse(messages.ModelReadyRequest, content)
        path = model_path(pairs_of(context.invocation_metadata()), request.name, "/ready")
        found = await self._get(path, context, allowed=(200, 503))
        return _encoded(messages.ModelReadyResponse(ready=found.get("ready", False)))

    async def _model_metadata(self, content: bytes, context: Context) -> bytes:
        request = _parse(messages.ModelMetadataRequest, content)
        path = model_path(pairs_of(context.invocation_metadata()), request.name, "")
        found = await self._get(path, context)
        fields = ("name", "versions", "platform", "inputs", "outputs")
        response = messages.ModelMetadataResponse(
            **{name: found[name] for name in fields if name in found}
        )
        return _encoded(response)

    async def _get(
        self, path: str, context: Context, *, allowed: tuple[int, ...] = (200,)
    ) -> dict[str, Any]:
        """The document at a path of the HTTP API, with the call's credentials.

        Raises CallFailed, GatewayError.
        """
        pairs = pairs_of(context.invocation_metadata())
        headers = [each for each in pairs if each[0] not in (b"host", AUTHORITY_HEADER)]
        if host := host_of(pairs):
            headers.append((b"host", host))
        status, _, body = await get(self._app, path, headers)
        document: dict[str, Any] = orjson.loads(body)
        if status not in allowed:
            raise CallFailed(status, str(document.get("error", "")), [])
        return document


def _with_errors(method: Method) -> Method:
    """The method, with errors as status codes."""

    async def handle(content: bytes, context: Context) -> bytes:
        try:
            return await method(content, context)
        except CallFailed as error:
            _fail(context, error.status, str(error), error.metadata)
        except GatewayError as error:
            reason = [(b"x-pilotlight-reason", str(error.reason).encode())]
            _fail(context, int(error.status), str(error), reason)
        return b""

    return handle


def _fail(context: Context, status: int, message: str, metadata: Headers) -> None:
    """Without `abort`: the context keeps its error, which would be a cycle."""
    context.set_code(grpc.StatusCode[code_of(status)])
    context.set_details(message[:MAX_DETAIL_CHARACTERS])
    context.set_trailing_metadata(_metadata(metadata))


def _metadata(headers: Headers) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name.decode(), value.decode("latin-1")) for name, value in headers if name not in _NOT_SENT
    )


def _parse(kind: Any, content: bytes) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise BadRequest(f"the message is not a {kind.DESCRIPTOR.name}: {error}") from error


def _encoded(message: Any) -> bytes:
    content: bytes = message.SerializeToString()
    return content
