"""One HTTP exchange over ASGI: the request's body, the client's disconnect, the response.

Shared by all protocols. A response is whole or in chunks, with errors in a protocol's form.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import orjson

from common.content_coding import ACCEPTED, CODINGS, UnpackedTooLarge, coding_of, unpack
from common.inference_protocol.errors import BodyTooLarge, InvalidRequest, PodError
from registry.domain.pod import Stage
from runtime.errors import InferenceFailed, UnsupportedCoding, status_of
from runtime.metrics import request_counter
from runtime.serving.in_flight import Interruption, PredictResponse
from runtime.serving.remote_inference import RemoteRefused

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


logger = logging.getLogger(__name__)

Result = TypeVar("Result")
WATCH_AFTER_S: Final = 0.01
"""A request that takes less ends before a cancellation would have saved anything."""


class RequestAborted(Exception):
    """The client closed its connection and reads no response."""


async def receive_body(headers: Mapping[str, str], receive: Receive, max_bytes: int) -> bytes:
    """The whole body of a request, unpacked; at most `max_bytes` of it are held in memory.

    Raises BodyTooLarge, InvalidRequest, UnsupportedCoding, RequestAborted.
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


async def while_connected(receive: Receive, work: Coroutine[object, object, Result]) -> Result:
    """The result of `work`; if the client disconnects, cancels it and raises RequestAborted.

    Runs it in the caller's task, and watches the client only once it has run for `WATCH_AFTER_S`: a
    task for each request would cost more than all of this.
    """
    loop = asyncio.get_running_loop()
    interruption = Interruption()
    watcher: asyncio.Task[None] | None = None

    def watch() -> None:
        nonlocal watcher
        watcher = loop.create_task(_wait_disconnected(receive, interruption))

    timer = loop.call_later(WATCH_AFTER_S, watch)
    try:
        result = await work
    except BaseException as error:
        if interruption.end(error):
            raise RequestAborted from error
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
    interruption.end(None)
    return result


async def _wait_disconnected(receive: Receive, interruption: Interruption) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    interruption.request()


# Responses

Headers = list[tuple[str, str]]
JSON = [("content-type", "application/json")]


Failure = PodError | RemoteRefused
ErrorForm = Callable[[Failure], object]
"""The JSON document of an error in some protocol."""


def kserve_error(error: Failure) -> object:
    """The form of V1 and V2."""
    return {"error": str(error)}


class HttpResponse:
    def __init__(self, send: Send, headers: Sequence[tuple[str, str]], form: ErrorForm) -> None:
        self._send = send
        self._headers = list(headers)
        self._form = form
        self.status = 0
        """The status that was sent; 0 before the head was sent."""

    async def send(
        self, content: bytes, headers: Sequence[tuple[str, str]], status: int = HTTPStatus.OK
    ) -> None:
        """Send the whole response."""
        await self.start([*headers, ("content-length", str(len(content)))], status)
        await self.finish(content)

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


def server_sent_event(document: object) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


# Headers


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
    if request_id := headers.get("x-request-id"):
        common.append(("x-request-id", request_id))
    return common


def server_timing(stages: Mapping[Stage, float]) -> tuple[str, str]:
    """The header with each stage's time; `stages` in seconds."""
    timings = (f"{stage};dur={seconds * 1000:.3f}" for stage, seconds in stages.items())
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


# Errors


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
