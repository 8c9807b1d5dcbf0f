"""uvicorn's HTTP/1.1 server with two changes that an inference gateway needs.

The running request hears at once when its client is gone, so that its slot is free. And an answer
goes out in one write, head and body together: a second system call and packet per answer cost a
fifth of the gateway's time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from uvicorn import Config
    from uvicorn.server import ServerState

ON_DISCONNECT: Final = "pilotlight.on_disconnect"
"""Scope key under which a request leaves what is to be called when its client is gone."""
BREAK_OFF: Final = "pilotlight.break-off"
"""Message type that ends an answer which cannot be completed: the client sees it cut."""
_END_OF_CHUNKS: Final = b"0\r\n\r\n"


class GatewayProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.scope: Any = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Let uvicorn clean up, then tell the request."""
        super().connection_lost(exc)
        if self.scope is not None and (tell := self.scope.get(ON_DISCONNECT)):
            tell()


class OneWriteCycle(RequestResponseCycle):
    """One request and its answer; the head is held back until the first piece of the body."""

    _head: list[bytes] | None = None

    async def send(self, message: Any) -> None:
        """ASGI's send."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == BREAK_OFF:
            self.disconnected = True
            self.transport.close()
        elif message["type"] == "http.response.start":
            self._start(message["status"], message["headers"])
        else:
            self._write(message.get("body", b""), is_last=not message.get("more_body", False))

    async def receive(self) -> Any:
        """ASGI's receive; the connection is read on, since that is how a client's end is seen."""
        message = await super().receive()
        if not self.disconnected:
            self.flow.resume_reading()
        return message

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        head = [STATUS_LINE[status]]
        self.chunked_encoding = status not in (204, 304) and self.scope["method"] != "HEAD"
        says_close = False
        for name, value in headers:
            if name == b"content-length":
                self.chunked_encoding = False
            elif name == b"connection" and value == b"close":
                says_close = True
                self.keep_alive = False
            head += (name, b": ", value, b"\r\n")
        if not self.keep_alive and not says_close:
            head.append(b"connection: close\r\n")
        if self.chunked_encoding:
            head.append(b"transfer-encoding: chunked\r\n")
        head.append(b"\r\n")
        self._head = head

    def _write(self, body: bytes, *, is_last: bool) -> None:
        out = self._head or []
        self._head = None
        if self.scope["method"] != "HEAD":
            if self.chunked_encoding and body:
                out += (b"%x\r\n" % len(body), body, b"\r\n")
            elif body:
                out.append(body)
            if self.chunked_encoding and is_last:
                out.append(_END_OF_CHUNKS)
        if out:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
        if is_last:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()


def install() -> type[GatewayProtocol]:
    """Make uvicorn use `OneWriteCycle`; returns the protocol class for its configuration.

    uvicorn names the class of its cycles in its module only, with no other way to choose it.
    """
    httptools_impl.RequestResponseCycle = OneWriteCycle  # type: ignore[misc]
    return GatewayProtocol
