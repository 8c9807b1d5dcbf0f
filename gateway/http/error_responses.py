"""Errors as clients read them: `{"error": …}`, as KServe or OpenAI say it."""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from gateway.http import openai

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.errors import GatewayError
    from gateway.http.client_request import ClientRequest


def _error_answer(
    error: GatewayError, *, is_openai: bool
) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The body, and the headers that go with it."""
    headers = [
        (b"content-type", b"application/json"),
        (b"x-pilotlight-reason", str(error.reason).encode()),
    ]
    if error.challenge is not None:
        headers.append((b"www-authenticate", error.challenge))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    document = openai.error_document(error) if is_openai else {"error": str(error)}
    return orjson.dumps(document), headers


def respond_with_error(client: ClientRequest, error: GatewayError, request_id: str) -> None:
    """Answer an inference request that failed."""
    body, headers = _error_answer(error, is_openai=client.target.openai_call is not None)
    if request_id:
        headers.append((b"x-request-id", request_id.encode()))
    if error.status in (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT):
        client.keep_alive = False  # the rest of the body will not be read
    client.answer(int(error.status), headers, body)


async def send_error(
    send: Callable[[dict[str, Any]], Awaitable[None]], error: GatewayError, *, is_openai: bool
) -> None:
    """Answer an ASGI request that failed; nothing happens if its client has left."""
    body, headers = _error_answer(error, is_openai=is_openai)
    headers.append((b"content-length", b"%d" % len(body)))
    with contextlib.suppress(ConnectionError):
        await send({"type": "http.response.start", "status": int(error.status), "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
