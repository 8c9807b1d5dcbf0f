"""The response to one HTTP request over ASGI: whole or in chunks, with errors in a protocol's form.

Shared by all protocols: headers, timings, the response to each error, metrics.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson

from common.content_coding import ACCEPTED
from common.inference_protocol.errors import PodError
from runtime.errors import InferenceFailed, UnsupportedCoding, status_of
from runtime.metrics import request_counter
from runtime.protocols.client import RequestAborted
from runtime.serving.remote_inference import RemoteRefused

if TYPE_CHECKING:
    from starlette.types import Scope, Send

    from registry.domain.pod import Stage
    from runtime.serving.predict_request import PredictResponse

logger = logging.getLogger(__name__)

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
