"""Who sent an inference request, by HTTP or gRPC: its body, and the way of the response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway.errors import ClientTooSlow
from gateway.http.body import BodySource

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gateway.errors import GatewayError
    from gateway.http.framing import KnownHead
    from gateway.http.headers import Headers
    from gateway.http.routes import ModelTarget
    from gateway.request_run import RequestRun


class InferenceClient(BodySource, Protocol):
    target: ModelTarget
    headers: Headers
    head: KnownHead | None
    """Of `headers`, if it was not parsed again."""
    loop: asyncio.AbstractEventLoop
    run: RequestRun
    waited_s: float
    """How long the request's head was there before it was begun, as far as known."""
    keep_alive: bool
    disconnected: bool
    response_started: bool
    on_disconnect: Callable[[], None] | None
    """Called when the client disconnects before its response is complete."""

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete response."""

    def start_response(self, status: int, lines: list[bytes], *, has_length: bool) -> None:
        """Set the head, given as parts of complete header lines; sent with the first body chunk."""

    def write_body(self, body: bytes, *, is_last: bool) -> None:
        """Send a part of the response; does nothing if the client has disconnected."""

    async def drain(self, timeout_s: float) -> None:
        """Wait until the client accepts more; raises TimeoutError."""

    def abort_response(self, error: GatewayError, /) -> None:
        """End a response that cannot be completed."""


async def wait_for_reader(client: InferenceClient, stall_s: float) -> None:
    """Return once the client accepts more; raises ClientTooSlow if it reads nothing so long."""
    try:
        await client.drain(stall_s)
    except TimeoutError:
        raise ClientTooSlow(f"the client read nothing of its response for {stall_s:g} s") from None
