"""Clients of inference, and error responses as KServe writes them or as OpenAI's error object."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import orjson

from common.content_coding import ACCEPTED
from common.http_headers import Headers
from gateway.errors import (
    BodiesFull,
    BodyTooSlow,
    ClientTooSlow,
    GatewayError,
    MethodNotAllowed,
    RequestBodyTooLarge,
    UnsupportedCoding,
)
from gateway.http import openai
from gateway.http.body import BodySource
from gateway.http.headers import KnownHead
from gateway.http.targets import ModelTarget
from gateway.request_task import RequestRun


class InferenceClient(BodySource, Protocol):
    """The sender of an inference request, by HTTP or gRPC."""

    target: ModelTarget
    headers: Headers
    head: KnownHead | None
    """Of `headers`, if it was not parsed again."""
    begun: Any
    """A request that was begun by callbacks, and goes on as this one; None: it is a new one."""
    loop: asyncio.AbstractEventLoop
    run: RequestRun
    waited_s: float
    """How long the request's head was there before it was begun, as far as known."""
    keep_alive: bool
    disconnected: bool
    response_started: bool
    on_disconnect: Callable[[], None] | None
    """Called when the client disconnects before its response is complete."""

    @property
    def proxy(self) -> Any:
        """Itself, if it sends the request to the pod that it is told; None: the gateway does."""

    @property
    def is_behind(self) -> bool:
        """It has not read what was sent to it, and should be sent no more until it has."""

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete response."""

    def start_response(self, status: int, lines: bytes, length: bytes) -> None:
        """Set the head, sent with the first body chunk.

        `length`: the value of `content-length`; empty: not known.
        """

    def write_body(self, body: bytes, *, is_last: bool) -> None:
        """Send a part of the response; does nothing if the client has disconnected."""

    @property
    def unread_bytes(self) -> int:
        """Of what was sent to it."""

    async def drain(self) -> None:
        """Wait until it is not behind any more."""

    def abort_response(self, error: GatewayError, /) -> None:
        """End a response that cannot be completed."""


async def wait_for_reader(client: InferenceClient, stall_s: float) -> None:
    """Return once the client accepts more; raises ClientTooSlow if it reads nothing so long."""
    if not client.is_behind:
        return
    while client.is_behind:
        unread_bytes = client.unread_bytes
        try:
            async with asyncio.timeout(stall_s):
                await client.drain()
        except TimeoutError:
            if client.unread_bytes >= unread_bytes:
                text = f"the client read nothing of its response for {stall_s:g} s"
                raise ClientTooSlow(text) from None


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
