"""One of OpenAI's endpoints on ASGI: from a request's bytes to a checked body and its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from runtime.openai.errors import openai_error
from runtime.openai.naming import openai_head
from runtime.openai.requests import Body, read_openai_body
from runtime.protocols.client import read_body_of, while_connected
from runtime.protocols.response import (
    HttpResponse,
    answer_or_fail,
    common_headers,
    headers_of,
    stage_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from starlette.types import Receive, Scope, Send

    from runtime.settings import RuntimeSettings
    from runtime.wire.request_head import RequestHead


@dataclass(frozen=True, slots=True)
class Call(Generic[Body]):
    """A request that was read, and where its answer goes."""

    head: RequestHead
    body: Body
    content: bytes
    """The body as it came."""
    reply: HttpResponse


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Body]):
    """An ASGI application; `work` ends when the client leaves, what it raises is the answer."""

    settings: RuntimeSettings
    kind: type[Body]
    work: Callable[[Call[Body]], Coroutine[object, object, None]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = headers_of(scope)
        reply = HttpResponse(send, common_headers(self.settings.name, headers), openai_error)
        await answer_or_fail(reply, stage_of(headers), self._serve(scope, headers, receive, reply))

    async def _serve(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, reply: HttpResponse
    ) -> None:
        content = await read_body_of(headers, receive, self.settings.max_body_bytes)
        body = read_openai_body(self.kind, content)
        head = openai_head(
            scope["path_params"].get("model"),
            body.model,
            headers,
            allow_simulated_work=self.settings.allow_simulated_work,
        )
        await while_connected(receive, self.work(Call(head, body, content, reply)))
