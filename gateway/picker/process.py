"""One stream of Envoy's external processing: a client's request, and Envoy's exchange with the pod.

Envoy sends heads, and bodies as its filter is set; each message but those is answered at once. The
answer to the request's head waits until the request is placed, or to its body, if that names the
model. What Envoy streams in full duplex is given back piece by piece. The picker's port has TLS
unless it is off.
"""

import asyncio
import datetime
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, MutableSet, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any, Final

from google.protobuf.message import DecodeError

from common.certificates import make_certificates, make_context
from common.grpc.call import INTERNAL, INVALID_ARGUMENT, Call
from common.grpc.http2 import GrpcConnection
from common.grpc.server import serving
from common.http_headers import Headers, read_lines
from common.inference_protocol.grpc_messages import message_classes
from common.tls import PART_NAME, PartTls
from gateway.app import GatewayApp
from gateway.errors import (
    BadRequest,
    ClientClosedRequest,
    GatewayError,
    MethodNotAllowed,
    UnknownPath,
)
from gateway.grpc.inference_service import get, server_options, target_of_call
from gateway.http.error_responses import body_and_headers
from gateway.http.headers import KnownHead
from gateway.http.openai import is_openai
from gateway.request_task import RequestRun
from gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

PROCESS: Final = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
DESTINATION: Final = "x-gateway-destination-endpoint"
_SERVED: Final = "x-gateway-destination-endpoint-served"
_SUBSET: Final = "x-gateway-destination-endpoint-subset"
_MODEL_NAME: Final = b"x-gateway-model-name"
"""Set by the inference extension's body-based router."""
_BALANCER: Final = "envoy.lb"
_SUBSET_HINT: Final = "envoy.lb.subset_hint"
_STREAMED, _BUFFERED, _PARTIAL, _DUPLEX = 1, 2, 3, 4
_OVERWRITE: Final = 2
_API: Final = re.compile(r"(?:/serving/[^/]+/[^/]+)?/(?:openai/)?v[12](?:/.*)?")
"""Paths of KServe's and OpenAI's protocols: of others clients of a proxy learn nothing."""
_UNEXPECTED: Final = b'{"error": "the gateway failed unexpectedly; see its log"}'
messages: Final[Any] = message_classes(
    files(__package__).joinpath("external_processor.binpb").read_bytes()
)


class Process(Call):
    """As an `InferenceClient`: one whose requests are sent by its proxy, Envoy."""

    head: KnownHead | None = None
    begun = None
    waited_s = 0.0
    keep_alive = True
    disconnected = response_started = is_behind = is_complete = is_picked = has_length = False
    unread_bytes = 0
    on_disconnect: Callable[[], None] | None = None
    subset: frozenset[str] | None = None
    """Addresses of the pods to choose from; None: all."""
    model_name: str | None = None
    """Of an OpenAI request, if a proxy's filter has read it from the body."""
    served = ""
    """Address of the pod that responded, if Envoy tells it."""
    response_status = 0
    response_headers: Headers
    _awaited = ""
    """The message that Envoy wants the pick with: the request's head or body."""
    _request_mode = _response_mode = 0
    _is_response_over = _is_trailed = _has_head = False
    _on_response: Callable[[], None] | None = None
    _wakeup: asyncio.Future[None] | None = None

    def __init__(
        self,
        app: GatewayApp,
        running: MutableSet[Any],
        connection: GrpcConnection,
        number: int,
        headers: Headers,
    ) -> None:
        super().__init__(connection, number, headers)
        self._app = app
        self.loop = asyncio.get_running_loop()
        self.run = RequestRun(self.loop, running)
        self.headers = []  # from now on the client's
        self._chunks: list[bytes] = []
        """Of the body, for those who read it."""
        self._kept: list[Any] = []
        """Parts of the body that Envoy gets back once the request is placed."""

    @property
    def proxy(self) -> "Process":
        return self

    # Messages

    def on_message(self, content: bytes) -> None:
        try:
            message = messages.ProcessingRequest.FromString(content)
        except DecodeError:
            self.finish(INVALID_ARGUMENT, "the message is not a ProcessingRequest")
            return
        kind = message.WhichOneof("request")
        try:
            if kind is not None:
                getattr(self, f"_on_{kind}")(getattr(message, kind), message)
        except Exception:
            logger.exception("request failed unexpectedly")
            self.finish(INTERNAL, "see the gateway's log")

    def on_end(self) -> None:
        self.finish()

    def on_over(self) -> None:
        """Envoy has no more to tell: the client is gone, or the response has begun or ended."""
        self._on_response = None
        if self.response_status or self.response_started:
            self._is_response_over = True
        else:
            self.disconnected = True
            if self.on_disconnect is not None:
                self.on_disconnect()
        self._wake()

    def _on_request_headers(self, head: Any, message: Any) -> None:
        if self._has_head:
            self.finish(INVALID_ARGUMENT, "the stream has two requests")
            return
        self._has_head = True
        self._request_mode = message.protocol_config.request_body_mode
        self._response_mode = message.protocol_config.response_body_mode
        self._awaited, self.is_complete = "request_headers", head.end_of_stream
        pairs = _pairs(head)
        pseudo = {name: value for name, value in pairs if name[:1] == b":"}
        self.headers = [pair for pair in pairs if pair[0][:1] != b":"]
        named = [value for name, value in self.headers if name == _MODEL_NAME]
        self.model_name = named[-1].decode("latin-1") if named else None
        hint = message.metadata_context.filter_metadata
        if _SUBSET_HINT in hint and _SUBSET in (fields := hint[_SUBSET_HINT].fields):
            listed = fields[_SUBSET].list_value.values
            self.subset = frozenset(each.string_value for each in listed)
        self.run.start(self._serve(pseudo))

    async def _serve(self, pseudo: dict[bytes, bytes]) -> None:
        path = pseudo.get(b":path", b"").partition(b"?")[0]
        host = pseudo.get(b":authority", b"")
        try:
            target, method = self._app.resolve_target(path, host), pseudo.get(b":method", b"")
            if target is not None and method == b"POST":
                self.target = target
                await self._app.infer(self)
            else:
                await self._answer_here(path.decode("latin-1"), host, method.decode("latin-1"))
        except Exception:
            logger.exception("request failed unexpectedly")
            if self.is_picked:
                self.finish(INTERNAL, "see the gateway's log")
            else:
                self.respond(500, [(b"content-type", b"application/json")], _UNEXPECTED)

    async def _answer_here(self, path: str, host: bytes, method: str) -> None:
        """Of a path that is no inference: what the gateway knows of models, or an error."""
        try:
            if method in ("GET", "HEAD") and _API.fullmatch(path):
                self.respond(*await get(self._app, path, [*self.headers, (b"host", host)]))
                return
            if not _API.fullmatch(path):
                raise UnknownPath(f"there is nothing at {path[:200]}")
            target_of_call(self._app, path, host)  # raises the error of one that is none
            raise MethodNotAllowed(method, path, ("POST",))
        except GatewayError as error:
            body, headers = body_and_headers(error, is_openai=is_openai(path))
            self.respond(int(error.status), headers, body)

    def _on_request_body(self, part: Any, _: Any) -> None:
        self._chunks.append(part.body)
        self.is_complete = part.end_of_stream or self._request_mode == _PARTIAL
        if not self.is_picked:
            self.pause()
            if self._request_mode == _DUPLEX:
                self._kept.append(part)
            else:
                self._awaited = "request_body"
            self._wake()
        else:
            self._chunks.clear()
            self._pass_on("request_body", part, self._request_mode)

    def _on_request_trailers(self, _: Any, __: Any) -> None:
        self.is_complete = self._is_trailed = True
        self._wake()
        if self.is_picked:
            self._pass_trailers("request_trailers")

    def _on_response_headers(self, head: Any, message: Any) -> None:
        pairs = _pairs(head)
        self.response_headers = [pair for pair in pairs if pair[0] != b":status"]
        found = dict(pairs)
        self.response_status = int(found.get(b":status", b"0"))
        self.has_length = b"content-length" in found
        known = message.metadata_context.filter_metadata
        if _BALANCER in known and _SERVED in (fields := known[_BALANCER].fields):
            self.served = fields[_SERVED].string_value
        self._is_response_over = head.end_of_stream or self.has_length
        """Complete at the pod: a slow client holds no slot."""
        on_response, self._on_response = self._on_response, None
        if on_response is not None:
            on_response()
        if self._is_response_over:
            self._wake()

    def _on_response_body(self, part: Any, _: Any) -> None:
        self._pass_on("response_body", part, self._response_mode)
        if part.end_of_stream:
            self._is_response_over = True
            self._wake()

    def _on_response_trailers(self, _: Any, __: Any) -> None:
        self._pass_trailers("response_trailers")
        self._is_response_over = True
        self._wake()

    # Answers

    def _pass_on(self, kind: str, part: Any, mode: int) -> None:
        answer = messages.ProcessingResponse()
        response = getattr(answer, kind).response
        response.SetInParent()
        if mode == _DUPLEX:
            response.body_mutation.streamed_response.CopyFrom(part)
        self._answer(answer)

    def _pass_trailers(self, kind: str) -> None:
        answer = messages.ProcessingResponse()
        getattr(answer, kind).SetInParent()
        self._answer(answer)

    def _answer(self, answer: Any) -> None:
        self.send(answer.SerializeToString())

    def pick(
        self,
        endpoints: Sequence[str],
        headers: Headers,
        dropped: Sequence[bytes],
        on_response: Callable[[], None],
    ) -> None:
        """Let Envoy send the request to the first of these pods that it reaches.

        `on_response` is called with the response's head, which `answer_response` answers.
        """
        self.is_picked, self._on_response = True, on_response
        answer = messages.ProcessingResponse()
        mutation = getattr(answer, self._awaited).response.header_mutation
        addresses = ",".join(endpoints)
        _set(mutation, [(DESTINATION.encode(), addresses.encode()), *headers])
        mutation.remove_headers.extend(name.decode("latin-1") for name in dropped)
        fields = answer.dynamic_metadata.fields[_BALANCER].struct_value.fields
        fields[DESTINATION].string_value = addresses
        self._answer(answer)
        for part in self._kept:
            self._pass_on("request_body", part, self._request_mode)
        if self._is_trailed:
            self._pass_trailers("request_trailers")
        self._kept, self._chunks = [], []
        self.resume()

    def answer_response(self, headers: Headers, dropped: Sequence[bytes]) -> None:
        """Change the response's head; see its body's end, if its length does not tell it."""
        answer = messages.ProcessingResponse()
        mutation = answer.response_headers.response.header_mutation
        _set(mutation, headers)
        mutation.remove_headers.extend(name.decode("latin-1") for name in dropped)
        if not (self._response_mode or self._is_response_over):
            answer.mode_override.response_body_mode = self._response_mode = _STREAMED
        self._answer(answer)

    async def wait_end(self) -> None:
        """Wait for the response's last byte, or the stream's end. Raises ClientClosedRequest."""
        while not self._is_response_over:
            await self._wait()

    async def _wait(self) -> None:
        if self.disconnected:
            raise ClientClosedRequest
        self._wakeup = self.loop.create_future()
        await self._wakeup

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    # The rest of an `InferenceClient`

    def take_chunks(self) -> list[bytes]:
        chunks, self._chunks = self._chunks, []
        if self._request_mode == _DUPLEX:
            self.resume()
        return chunks

    async def receive_chunks(self) -> list[bytes]:
        """More of the body, which Envoy sends after an answer to the head, or in full duplex."""
        if self._request_mode not in (_BUFFERED, _PARTIAL, _DUPLEX) and not self.is_complete:
            raise BadRequest(
                "the path names no model, and the proxy does not send the body that may: use the"
                " path /serving/NAMESPACE/NAME/openai/v1, or set request_body_mode to BUFFERED or"
                " FULL_DUPLEX_STREAMED"
            )
        if self._request_mode != _DUPLEX and self._awaited == "request_headers":
            self._awaited = ""
            self._pass_on("request_headers", None, 0)
        while not (self._chunks or self.is_complete):
            await self._wait()
        return self.take_chunks()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.response_started = True
        answer = messages.ProcessingResponse()
        immediate = answer.immediate_response
        immediate.status.code, immediate.body = status, body
        _set(immediate.headers, [pair for pair in headers if pair[0] != b"content-length"])
        self._answer(answer)

    def start_response(self, status: int, lines: bytes, length: bytes) -> None:
        """Begin a response of the gateway's own."""
        self._started = status, read_lines(lines)

    def write_body(self, body: bytes, *, is_last: bool) -> None:
        self._chunks.append(body)
        if is_last:
            self.respond(*self._started, b"".join(self._chunks))

    async def drain(self) -> None:
        """Return at once: nothing is streamed to it."""

    def abort_response(self, error: GatewayError, /) -> None:
        self.finish(INTERNAL, str(error))


def _pairs(head: Any) -> Headers:
    return [
        (each.key.encode(), each.raw_value or each.value.encode()) for each in head.headers.headers
    ]


def _set(mutation: Any, headers: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in headers:
        option = mutation.set_headers.add()
        option.append_action = _OVERWRITE
        option.header.key, option.header.raw_value = name.decode("latin-1"), value


_READY: Final = ("", "readiness", PROCESS.decode().split("/")[1])


def _tls(settings: GatewaySettings) -> PartTls:
    """With one's own certificate, if there is none: gateways do not verify a picker's."""
    if settings.picker_tls == "off":
        return PartTls()
    tls = PartTls(settings.tls_dir)
    if tls.server is None:
        made = make_certificates([PART_NAME], datetime.datetime.now(datetime.UTC))
        tls.server = make_context(made)
    tls.server.set_alpn_protocols(["h2"])
    return tls


@asynccontextmanager
async def serving_picker(app: GatewayApp, settings: GatewaySettings) -> AsyncIterator[None]:
    """The picker at `--picker-port`. Raises OSError if the port is taken."""
    tls = _tls(settings)
    is_ready = {**dict.fromkeys(_READY, lambda: app.is_ready), "liveness": lambda: True}
    services = {PROCESS: partial(Process, app, set())}
    options = server_options(app, settings)
    async with (
        asyncio.TaskGroup() as group,
        serving(services, is_ready, port=settings.picker_port, tls=tls.server, **options),
    ):
        reloading = group.create_task(tls.reload_periodically())
        try:
            yield
        finally:
            reloading.cancel()
