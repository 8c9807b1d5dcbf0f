"""One of OpenAI's endpoints on ASGI: from a request's bytes to a checked body and its model."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic

from registry.domain.model import ModelName
from runtime.errors import ModelNotFound
from runtime.openai.requests import Body, parse_openai_body
from runtime.openai.responses import openai_error
from runtime.protocols.exchange import (
    HttpResponse,
    common_headers,
    headers_of,
    receive_body,
    respond,
    stage_of,
)
from runtime.serving.in_flight import while_connected
from runtime.settings import RuntimeSettings
from runtime.threads import SMALL_BODY_BYTES, in_thread
from runtime.wire import RequestHead, parse_request_head

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


MAX_BYTES: Final = 4 * 1024**2
"""Longest body: a million tokens of text, more than any model reads; each part of it is checked."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Body]):
    """A request that was received, and its response."""

    head: RequestHead
    body: Body
    content: bytes
    """The body as it was received."""
    response: HttpResponse


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Body]):
    """An ASGI application; `serve` is cancelled if the client disconnects.

    Errors of `serve` become error responses.
    """

    settings: RuntimeSettings
    threads: Executor
    body_class: type[Body]
    serve: Callable[[Call[Body]], Coroutine[object, object, None]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        response = HttpResponse(send, common_headers(self.settings.name, headers), openai_error)
        work = self._receive(scope["path_params"].get("model"), headers, receive, response)
        await respond(response, stage_of(headers), work)

    async def _receive(
        self,
        path_model: str | None,
        headers: Mapping[str, str],
        receive: Receive,
        response: HttpResponse,
    ) -> None:
        max_bytes = min(self.settings.max_body_bytes, MAX_BYTES)
        content = await receive_body(headers, receive, max_bytes)
        if len(content) <= SMALL_BODY_BYTES:
            body = parse_openai_body(self.body_class, content)
        else:
            body = await in_thread(self.threads, parse_openai_body, self.body_class, content)
        head = _parse_head(path_model, body.model, headers)
        await while_connected(receive, self.serve(Call(head, body, content, response)))


def parse_model_name(text: str) -> ModelName:
    """The model that a client names `name`, `namespace/name` or `namespace~name`."""
    return ModelName.from_path_segment(text) if "~" in text else ModelName.parse(text)


def _parse_head(path_model: str | None, body_model: str, headers: Mapping[str, str]) -> RequestHead:
    """The head of a request; raises ModelNotFound if path and body name different models.

    The body may also name the stable version of a canary: the gateway sends that name in
    `x-pilotlight-model-name`, and responses carry it.
    """
    model = parse_model_name(body_model)
    if path_model is not None:
        addressed = ModelName.from_path_segment(path_model)
        public_name = headers.get("x-pilotlight-model-name")
        if body_model not in (addressed.name, str(addressed), addressed.path_segment, public_name):
            raise ModelNotFound(f"the body names model {body_model!r}, the path {addressed}")
        model = addressed
    return parse_request_head(model.path_segment, headers)
