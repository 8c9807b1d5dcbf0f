"""The answer to one request on ASGI: out whole or piece by piece, errors in OpenAI's shape."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson

from runtime.errors import InferenceFailed, RuntimePackageError
from runtime.metrics import REQUESTS
from runtime.openai.answers import event
from runtime.openai.errors import error_answer, error_document
from runtime.peer import PeerRefused
from runtime.protocols.client import ClientGone

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from starlette.types import Send

logger = logging.getLogger(__name__)

Headers = list[tuple[str, str]]


class Reply:
    """The answer to one request."""

    def __init__(self, send: Send, headers: Sequence[tuple[str, str]]) -> None:
        self._send = send
        self._headers = list(headers)
        self.status: HTTPStatus | None = None
        """The status that was sent; None: nothing was."""

    async def whole(self, content: bytes, headers: Headers, status: int = HTTPStatus.OK) -> None:
        """Answer at once."""
        await self.begin([*headers, ("content-length", str(len(content)))], status)
        await self.end(content)

    async def begin(self, headers: Headers, status: int = HTTPStatus.OK) -> None:
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

    async def fail(self, error: RuntimePackageError) -> None:
        """Answer with an error; inside a stream, as its last event."""
        if self.status is None:
            status, content, headers = error_answer(error)
            await self.whole(content, headers, status)
        else:
            await self.end(event(error_document(error)))

    async def pass_on(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        """Another pod's refusal, in OpenAI's shape."""
        try:
            message = orjson.loads(content)["error"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            message = content.decode("utf-8", "replace")
        document = {"message": message, "type": "server_error", "param": None, "code": None}
        kept = [(name, value) for name, value in headers.items() if name != "content-type"]
        await self.whole(
            orjson.dumps({"error": document}), [("content-type", "application/json"), *kept], status
        )


async def answer_or_fail(reply: Reply, stage: str, work: Coroutine[object, object, None]) -> None:
    """Do the work; whatever it raises becomes the answer, and the outcome is counted."""
    try:
        await work
    except ClientGone:
        REQUESTS.labels(stage=stage, status="gone").inc()
        return
    except PeerRefused as refused:
        await reply.pass_on(refused.status, refused.body, refused.headers)
    except RuntimePackageError as error:
        await reply.fail(error)
    except Exception as error:
        logger.exception("request broke")
        await reply.fail(InferenceFailed(repr(error)))
    REQUESTS.labels(stage=stage, status=str(int(reply.status or 0))).inc()
