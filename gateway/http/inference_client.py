"""Who sent an inference request, by HTTP or gRPC: its body, and the way of the response."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from gateway.errors import ClientTooSlow, GatewayError
from gateway.http.body import BodySource
from gateway.http.framing import KnownHead
from gateway.http.headers import Headers
from gateway.http.targets import ModelTarget
from gateway.request_run import RequestRun


class InferenceClient(BodySource, Protocol):
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
    await client.run.in_task()
    while client.is_behind:
        unread_bytes = client.unread_bytes
        try:
            async with asyncio.timeout(stall_s):
                await client.drain()
        except TimeoutError:
            if client.unread_bytes >= unread_bytes:
                text = f"the client read nothing of its response for {stall_s:g} s"
                raise ClientTooSlow(text) from None
