"""Error responses: `{"error": …}` as KServe writes it, or OpenAI's error object."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from common.content_coding import ACCEPTED
from gateway.errors import (
    BodiesFull,
    BodyTooSlow,
    GatewayError,
    MethodNotAllowed,
    RequestBodyTooLarge,
    UnsupportedCoding,
)
from gateway.http import openai
from gateway.http.headers import Headers
from gateway.http.inference_client import InferenceClient


def body_and_headers(error: GatewayError, *, is_openai: bool) -> tuple[bytes, Headers]:
    headers = [
        (b"content-type", b"application/json"),
        (b"x-pilotlight-reason", str(error.reason).encode()),
    ]
    if error.challenge is not None:
        headers.append((b"www-authenticate", error.challenge))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    if isinstance(error, UnsupportedCoding):
        headers.append((b"accept-encoding", b"identity, " + ACCEPTED.encode()))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allowed.encode()))
    document = openai.error_document(error) if is_openai else {"error": str(error)}
    return orjson.dumps(document), headers


def leaves_body_unread(error: GatewayError) -> bool:
    """The connection closes after the response: the rest of the body will not be read."""
    return isinstance(error, (RequestBodyTooLarge, BodyTooSlow, BodiesFull))


def respond_with_error(
    client: InferenceClient, error: GatewayError, request_id: str, gateway: bytes
) -> None:
    """`gateway`: its name, for those who look for the explanation."""
    body, headers = body_and_headers(error, is_openai=client.target.openai_endpoint is not None)
    if request_id:
        headers.append((b"x-request-id", request_id.encode()))
    headers.append((b"x-pilotlight-gateway", gateway))
    if leaves_body_unread(error):
        client.keep_alive = False
    client.respond(int(error.status), headers, body)


async def send_error(
    send: Callable[[dict[str, Any]], Awaitable[None]], error: GatewayError, *, is_openai: bool
) -> None:
    """Respond to an ASGI request that failed; does nothing if its client has disconnected."""
    body, headers = body_and_headers(error, is_openai=is_openai)
    headers.append((b"content-length", b"%d" % len(body)))
    with contextlib.suppress(ConnectionError):
        await send({"type": "http.response.start", "status": int(error.status), "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
