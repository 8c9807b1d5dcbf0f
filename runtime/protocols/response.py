"""The answer to one HTTP request on ASGI: out whole or piece by piece, errors in a protocol's form.

What all inference protocols do alike: headers, timings, which error becomes which answer, counting.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson

from runtime.errors import InferenceFailed, RuntimePackageError, status_of
from runtime.metrics import REQUESTS
from runtime.protocols.client import ClientLeft
from runtime.serving.remote_inference import RemoteRefused

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from starlette.types import Scope, Send

    from registry.domain.pod import Stage
    from runtime.serving.predict_service import PredictAnswer

logger = logging.getLogger(__name__)

Headers = list[tuple[str, str]]
JSON = [("content-type", "application/json")]


Failure = RuntimePackageError | RemoteRefused
ErrorForm = Callable[[Failure], object]
"""How a protocol writes an error: its JSON document."""


def kserve_error(error: Failure) -> object:
    """V1's and V2's form."""
    return {"error": str(error)}


class HttpResponse:
    """The answer to one request."""

    def __init__(self, send: Send, headers: Sequence[tuple[str, str]], form: ErrorForm) -> None:
        self._send = send
        self._headers = list(headers)
        self._form = form
        self.status: HTTPStatus | None = None
        """The status that was sent; None: nothing was."""

    async def whole(
        self, content: bytes, headers: Sequence[tuple[str, str]], status: int = HTTPStatus.OK
    ) -> None:
        """Answer at once."""
        await self.begin([*headers, ("content-length", str(len(content)))], status)
        await self.end(content)

    async def begin(self, headers: Sequence[tuple[str, str]], status: int = HTTPStatus.OK) -> None:
        """Send the head."""
        self.status = HTTPStatus(status)
        raw = [
            (name.encode("latin-1"), value.encode("latin-1", "replace"))
            for name, value in (*headers, *self._headers)
        ]
        await self._send(
            {"type": "http.response.start", "status": int(self.status), "headers": raw}
        )

    async def piece(self, content: bytes) -> None:
        """Send some of the body; returns when the client keeps up."""
        await self._send({"type": "http.response.body", "body": content, "more_body": True})

    async def end(self, content: bytes = b"") -> None:
        """Send the last of the body."""
        await self._send({"type": "http.response.body", "body": content})

    async def fail(self, error: Failure) -> None:
        """Answer with an error; inside a stream, as its last event."""
        if self.status is None:
            status, content, headers = error_answer(error, self._form)
            await self.whole(content, headers, status)
        else:
            await self.end(event(self._form(error)))


async def answer_or_fail(
    reply: HttpResponse, stage: str, work: Coroutine[object, object, None]
) -> None:
    """Do the work; whatever it raises becomes the answer, and the outcome is counted."""
    try:
        await work
    except ClientLeft:
        REQUESTS.labels(stage=stage, status="gone").inc()
        return
    except (RuntimePackageError, RemoteRefused) as error:
        await reply.fail(error)
    except Exception as error:
        logger.exception("request broke")
        await reply.fail(InferenceFailed(repr(error)))
    REQUESTS.labels(stage=stage, status=str(int(reply.status or 0))).inc()


def event(document: object) -> bytes:
    """A server-sent event."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


# Headers


def headers_of(scope: Scope) -> dict[str, str]:
    """A request's headers by their names in lower case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def stage_of(headers: Mapping[str, str]) -> str:
    """Whether a request came from a client or, for the inference stage alone, from a pod."""
    return "infer" if "x-pilotlight-stage" in headers else "entry"


def common_headers(pod: str, headers: Mapping[str, str]) -> Headers:
    """What every answer to a request with these headers carries."""
    common = [("x-pilotlight-pod", pod)]
    if request_id := headers.get("x-request-id"):
        common.append(("x-request-id", request_id))
    return common


def server_timing(stages: Mapping[Stage, float]) -> tuple[str, str]:
    """The header that tells each stage's time; `stages` in seconds."""
    timings = (f"{stage.value};dur={seconds * 1000:.3f}" for stage, seconds in stages.items())
    return "server-timing", ", ".join(timings)


def provenance_headers(answer: PredictAnswer) -> Headers:
    """How an answer came about."""
    return [
        ("x-pilotlight-predict-pod", answer.predict_pod),
        ("x-pilotlight-start", answer.start),
        server_timing(answer.stages),
    ]


# Errors


def error_answer(error: Failure, form: ErrorForm = kserve_error) -> tuple[int, bytes, Headers]:
    """Status, body and headers of an error."""
    return answer_status(error), orjson.dumps(form(error)), [*JSON, *error_headers(error)]


def answer_status(error: Failure) -> int:
    """The status an error is answered with; of another pod's, its own."""
    return error.status if isinstance(error, RemoteRefused) else status_of(error)


def error_headers(error: Failure) -> Headers:
    """What a client, or the gateway, is told beside the message."""
    if isinstance(error, RemoteRefused):
        return list(error.headers.items())
    headers = []
    if error.refusal is not None:
        headers.append(("x-pilotlight-not-executed", error.refusal))
    if error.retry_after_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    return headers
