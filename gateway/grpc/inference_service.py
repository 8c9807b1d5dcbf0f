"""V2 inference over gRPC: each call is a request of the application, its message the body.

Messages are forwarded as they are: pods read and write them. Triton's `ModelStreamInfer` is served,
too: each message of its stream is a request, answered in order.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

import grpc
import grpc.aio
import orjson
from google.protobuf.message import DecodeError

from common.inference_protocol.grpc_messages import INFERENCE, messages
from common.pod_responses import MAX_DETAIL_CHARACTERS, code_of
from gateway.errors import BadRequest, GatewayError
from gateway.grpc.authority_relay import AUTHORITY_HEADER
from gateway.grpc.grpc_request import (
    GrpcRequest,
    host_of,
    model_path,
    pairs_of,
    request_headers,
    target_of_call,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.types import Message

    from gateway.app import GatewayApp
    from gateway.http.headers import Headers

    Context: TypeAlias = grpc.aio.ServicerContext
    Method: TypeAlias = Callable[[bytes, Context], Awaitable[bytes]]

_NOT_SENT: Final = frozenset((b"content-type", b"content-length", b"connection"))
_STREAM_ERROR: Final = 0x0A
"""Of `ModelStreamInferResponse`: the tag of field 1, a text."""
_STREAM_RESPONSE: Final = 0x12
"""The tag of field 2, a `ModelInferResponse`."""


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
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream_infer)
        return grpc.method_handlers_generic_handler(INFERENCE, methods)

    # Inference

    async def _model_infer(self, content: bytes, context: Context) -> bytes:
        request = await self._infer(content, context)
        context.set_trailing_metadata(_metadata(request.metadata))
        return request.body

    async def _stream_infer(
        self, contents: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        """As Triton does, an error answers its message, and the stream goes on."""
        async for content in contents:
            try:
                tag, answer = _STREAM_RESPONSE, (await self._infer(content, context)).body
            except (CallFailed, GatewayError) as error:
                tag, answer = _STREAM_ERROR, str(error).encode()
            yield bytes((tag, *_varint(len(answer)))) + answer

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

        await self._app(scope, receive, send)
        status = sent[0]["status"]
        document: dict[str, Any] = orjson.loads(b"".join(each.get("body", b"") for each in sent))
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


def _varint(number: int) -> bytes:
    """A length as protobuf writes it."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
