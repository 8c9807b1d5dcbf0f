"""Who sent an inference request, by HTTP or gRPC: its body, and the way of the response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gateway.http.headers import Headers
    from gateway.http.routes import ModelTarget


class InferenceClient(Protocol):
    target: ModelTarget
    headers: Headers
    loop: asyncio.AbstractEventLoop
    waited_s: float
    """How long the request's head was there before it was begun, as far as known."""
    keep_alive: bool
    disconnected: bool
    response_started: bool
    is_complete: bool
    """True once the end of the body was received."""
    on_disconnect: Callable[[], None] | None
    """Called when the client disconnects before its response is complete."""

    def take_chunks(self) -> list[bytes]:
        """Chunks of the body received since the last call."""

    async def receive_chunks(self) -> list[bytes]:
        """Wait for more of the body, or its end. Raises ClientClosedRequest."""

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete response."""

    def start_response(self, status: int, lines: list[bytes], *, has_length: bool) -> None:
        """Set the head, given as parts of complete header lines; sent with the first body chunk."""

    def write_body(self, body: bytes, *, is_last: bool) -> None:
        """Send a part of the response; does nothing if the client has disconnected."""

    async def drain(self, timeout_s: float) -> None:
        """Wait until the client accepts more; raises TimeoutError."""

    def abort_response(self) -> None:
        """End a response that cannot be completed."""
