"""The pod's application over ASGI: inference here, all else by the framework.

A body's length is checked while it is received, and a client that disconnects cancels its request.
A response is whole or in chunks, with errors in a protocol's form.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from common.content_coding import ACCEPTED, CODINGS, UnpackedTooLarge, coding_of, unpack
from common.inference_protocol import BodyTooLarge, InvalidRequest, PodError
from common.inference_protocol.bodies import EncodedBody
from common.pod_secret import HEADER, PodSecret
from registry.domain.pod import Stage
from runtime.errors import InferenceFailed, Unauthorized, UnsupportedCoding, status_of
from runtime.inference_request import PROTOBUF, WireProtocol, parse_request_head
from runtime.metrics import request_counter
from runtime.serving.in_flight import (
    InFlightRequests,
    PredictResponse,
    RequestAborted,
    while_connected,
)
from runtime.serving.predict_service import PredictService
from runtime.serving.remote_inference import RemoteRefused
from runtime.serving.repository import Repository

logger = logging.getLogger(__name__)

Headers = list[tuple[str, str]]
JSON = [("content-type", "application/json")]
Failure = PodError | RemoteRefused
ErrorForm = Callable[[Failure], object]
"""The JSON document of an error in some protocol."""


def kserve_error(error: Failure) -> object:
    """The form of V1 and V2."""
    return {"error": str(error)}


def error_response(error: Failure, form: ErrorForm = kserve_error) -> tuple[int, bytes, Headers]:
    """Status, body and headers of an error."""
    return error_status(error), orjson.dumps(form(error)), [*JSON, *error_headers(error)]


def error_status(error: Failure) -> int:
    """The HTTP status of an error; an error of another pod keeps its status."""
    return error.status if isinstance(error, RemoteRefused) else status_of(error)


def error_headers(error: Failure) -> Headers:
    """Headers that name the error, and say whether the request was executed and when to retry."""
    if isinstance(error, RemoteRefused):
        return list(error.headers.items())
    headers = [("x-pilotlight-error", error.label)]
    if error.refusal is not None:
        headers.append(("x-pilotlight-not-executed", error.refusal))
    if isinstance(error, UnsupportedCoding):
        headers.append(("accept-encoding", f"identity, {ACCEPTED}"))
    if error.retry_after_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    return headers


def server_sent_event(document: object) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


STRUCTURED: Final = "application/cloudevents+json"
_REQUIRED: Final = ("ce-specversion", "ce-id", "ce-source", "ce-type")
_TYPE: Final = "io.kserve.inference.response"
_SOURCE: Final = "io.kserve.inference."


def _is_binary(headers: Mapping[str, str]) -> bool:
    return "ce-specversion" in headers and all(name in headers for name in _REQUIRED)


def _is_structured(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").startswith(STRUCTURED)


def answer_in_kind(headers: Mapping[str, str], model_name: str, body: EncodedBody) -> EncodedBody:
    """The response as a CloudEvent 1.0 in the request's mode, if the request is one.

    As KServe's servers over V1: binary mode (attributes in headers `ce-…`) or structured mode (one
    JSON document).
    """
    is_binary = _is_binary(headers)
    if not is_binary and not _is_structured(headers):
        return body
    attributes = {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": f"{_SOURCE}{model_name}",
        "type": _TYPE,
        "time": datetime.now(UTC).isoformat(),
    }
    if is_binary:
        named = tuple((f"ce-{name}", value) for name, value in attributes.items())
        return EncodedBody(body.content, (*body.headers, *named))
    content = orjson.dumps({**attributes, "data": orjson.Fragment(body.content)})
    return EncodedBody(content, (("content-type", STRUCTURED),))


OPEN_PATHS: Final = frozenset({"/", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""For the kubelet's probes and for Prometheus, which have no secret."""
OPEN_METHODS: Final = frozenset({"GET", "HEAD"})
REFUSAL: Final = (
    f"pods accept requests of their gateway and autoscaler only: the header {HEADER} must have a"
    " secret of --pod-secret-file; send requests to the gateway"
)
_HEADER: Final = HEADER.encode()


class PodApplication:
    """All of a pod's HTTP: refuses who lacks the shared secret, before anything is read.

    Routes to ASGI applications go without the framework, since these send the response to every
    error themselves: its five layers and a search through all routes take seven times as long.
    What is sent to a client that is gone is dropped, as uvicorn does: uvloop closes a connection a
    turn of the loop before it tells uvicorn's protocol, and a write between fails.
    """

    def __init__(self, framework: ASGIApp, routes: Sequence[Route], secret: PodSecret) -> None:
        """Routes in order; all that match none of those with ASGI endpoints go to `framework`."""
        self._framework = framework
        self._routes = [route for route in routes if route.app is route.endpoint]
        self._secret, self._checks = secret, secret.is_required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._checks and not self._is_allowed(scope):
            status, body, headers = error_response(Unauthorized(REFUSAL))
            await Response(body, status, dict(headers))(scope, receive, _open_only(send))
            return
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                await route.app(scope, receive, send)
                return
        await self._framework(scope, receive, _open_only(send))

    def _is_allowed(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == _HEADER), None)
        if given is not None and self._secret.accepts(given):
            return True
        return scope["path"] in OPEN_PATHS and scope["method"] in OPEN_METHODS


def _is_closed(error: RuntimeError) -> bool:
    """Whether it is that of a connection that the client has closed."""
    return "the handler is closed" in str(error)


def _open_only(send: Send) -> Send:
    async def send_if_open(message: Message) -> None:
        try:
            await send(message)
        except RuntimeError as error:
            if not _is_closed(error):
                raise

    return send_if_open


@dataclass(frozen=True, slots=True)
class InferRoute:
    """One protocol's inference endpoint, as an ASGI application."""

    service: PredictService
    repository: Repository
    protocol: WireProtocol
    max_body_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        response = HttpResponse(send, common_headers(self.service.pod_name, headers), kserve_error)
        work = self._serve(scope["path_params"], headers, receive, response)
        await respond(response, stage_of(headers), work)

    async def _serve(
        self,
        parameters: Mapping[str, str],
        headers: Mapping[str, str],
        receive: Receive,
        response: HttpResponse,
    ) -> None:
        head = parse_request_head(parameters["model"], headers)
        if "version" in parameters:  # selects the model's generation
            spec = await self.repository.find(parameters["model"], parameters["version"])
            head = replace(head, generation=spec.generation)
        in_flight = self.service.in_flight
        in_flight.check_admission(head)
        body = await receive_body(headers, receive, self.max_body_bytes, in_flight)
        protocol = self.protocol
        if protocol is WireProtocol.V2 and headers.get("content-type") == PROTOBUF:
            protocol = WireProtocol.GRPC_V2  # the gateway's gRPC calls
        result = await while_connected(receive, self.service.predict(head, protocol, body))
        encoded = result.body
        may_be_event = "ce-id" in headers or "cloudevents" in headers.get("content-type", "")
        if may_be_event and protocol is WireProtocol.V1:
            encoded = answer_in_kind(headers, head.response_model_name, encoded)
        await response.send(encoded.content, [*encoded.headers, *provenance_headers(result)])


async def receive_body(
    headers: Mapping[str, str], receive: Receive, max_bytes: int, in_flight: InFlightRequests
) -> bytes:
    """The whole body of a request, unpacked; at most `max_bytes` of it are held in memory.

    Raises BodyTooLarge, InvalidRequest, UnsupportedCoding, RequestAborted, and PodDraining where
    the pod drains before the body has come.
    """
    header = headers.get("content-encoding")
    coding = coding_of(header) if header else ""
    if coding and coding not in CODINGS:
        raise UnsupportedCoding(
            f"header content-encoding must be absent or one of identity, {ACCEPTED}, was"
            f" {coding[:40]!r}"
        )
    declared = headers.get("content-length")
    if declared is not None and int(declared) > max_bytes:
        raise _too_large(max_bytes, f"{declared} bytes")
    chunks, total = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestAborted
        chunk = message.get("body", b"")
        total += len(chunk)
        if total > max_bytes:
            raise _too_large(max_bytes, f"{total} bytes or more")
        chunks.append(chunk)
        if not message.get("more_body", False):
            break
        in_flight.check_draining()
    if not total:
        raise InvalidRequest("the body is empty")
    body = b"".join(chunks)
    return await _unpacked(body, coding, max_bytes) if coding else body


async def _unpacked(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Zeros take a thousandth of their length: in a thread, however short the body is."""
    try:
        return await asyncio.to_thread(unpack, body, coding, max_bytes)
    except UnpackedTooLarge as error:
        raise _too_large(max_bytes, f"more, packed as {coding}") from error
    except ValueError as error:
        raise InvalidRequest(f"the body {error}, as header content-encoding says") from error


def _too_large(max_bytes: int, seen: str) -> BodyTooLarge:
    return BodyTooLarge(f"the body may have {max_bytes} bytes, has {seen}")


class HttpResponse:
    def __init__(self, send: Send, headers: Sequence[tuple[str, str]], form: ErrorForm) -> None:
        """`send` is that of uvicorn's request cycle."""
        self._cycle: Any = send.__self__  # type: ignore[attr-defined]  # uvicorn's
        self._send = _open_only(send)
        self._headers = list(headers)
        self._form = form
        self.status = 0
        """The status that was sent; 0 before the head was sent."""

    async def send(
        self, content: bytes, headers: Sequence[tuple[str, str]], status: int = HTTPStatus.OK
    ) -> None:
        """Send the whole response, in one write: uvicorn makes two, and reads each header again."""
        cycle, self.status = self._cycle, int(status)
        if cycle.flow.write_paused:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        all_headers = [*headers, *self._headers]
        lines = "\r\n".join([f"{name}: {value}" for name, value in all_headers])
        if lines.count("\n") >= len(all_headers):
            raise ValueError(f"a response's header has a line break: {lines!r}")
        head = (
            STATUS_LINE[self.status]
            + lines.encode("latin-1", "replace")
            + (b"\r\n" if cycle.keep_alive else b"\r\nconnection: close\r\n")
            + b"content-length: %d\r\n\r\n" % len(content)
        )
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        try:
            cycle.transport.writelines((head, content))
        except RuntimeError as error:
            if not _is_closed(error):
                raise
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    async def start(self, headers: Sequence[tuple[str, str]], status: int = HTTPStatus.OK) -> None:
        """Send the head."""
        self.status = int(status)
        raw = [
            (name.encode("latin-1"), value.encode("latin-1", "replace"))
            for name, value in (*headers, *self._headers)
        ]
        await self._send({"type": "http.response.start", "status": self.status, "headers": raw})

    async def write(self, content: bytes) -> None:
        """Send a chunk of the body; waits while the client reads too slowly."""
        await self._send({"type": "http.response.body", "body": content, "more_body": True})

    async def finish(self, content: bytes = b"") -> None:
        """Send the last chunk of the body."""
        await self._send({"type": "http.response.body", "body": content})

    async def fail(self, error: Failure) -> None:
        """Send an error; within a stream, as its last event."""
        if not self.status:
            status, content, headers = error_response(error, self._form)
            await self.send(content, headers, status)
        else:
            await self.finish(server_sent_event(self._form(error)))


async def respond(
    response: HttpResponse, stage: str, work: Coroutine[object, object, None]
) -> None:
    """Run `work`, send its error as the response, and count the request by stage and status."""
    try:
        await work
    except RequestAborted:
        request_counter(stage, "gone").inc()
        return
    except (PodError, RemoteRefused) as error:
        await response.fail(error)
    except Exception as error:
        logger.exception("request failed with an unexpected error")
        await response.fail(InferenceFailed(repr(error)))
    request_counter(stage, str(response.status)).inc()


def headers_of(scope: Scope) -> dict[str, str]:
    """A request's headers by their names in lower case, decoded at once: no byte of one is 0."""
    parts = (
        b"\0".join(itertools.chain.from_iterable(scope["headers"])).decode("latin-1").split("\0")
    )
    return dict(zip(parts[::2], parts[1::2], strict=False))


def stage_of(headers: Mapping[str, str]) -> str:
    """`infer` for a request from another pod, for its inference stage alone; else `entry`."""
    return "infer" if "x-pilotlight-stage" in headers else "entry"


def common_headers(pod: str, headers: Mapping[str, str]) -> Headers:
    """Headers of every response to a request with these headers."""
    common = [("x-pilotlight-pod", pod)]
    # A gateway writes the id itself: without it heads are alike, and it has parsed them before.
    if (request_id := headers.get("x-request-id")) and "x-pilotlight-generation" not in headers:
        common.append(("x-request-id", request_id))
    return common


def server_timing(stages: Mapping[Stage, float]) -> tuple[str, str]:
    """The header with each stage's time; `stages` in seconds."""
    timings = [f"{stage};dur={seconds * 1000:.3f}" for stage, seconds in stages.items()]
    return "server-timing", ", ".join(timings)


def provenance_headers(response: PredictResponse) -> Headers:
    headers = [
        ("x-pilotlight-predict-pod", response.predict_pod),
        ("x-pilotlight-start", response.start),
        server_timing(response.stages),
    ]
    if response.batch:
        headers.append(("x-pilotlight-batch", response.batch))
    return headers
