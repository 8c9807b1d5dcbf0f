"""One request on a client's connection: an inference with its response, or one left to uvicorn.

`ClientRequest` does what uvicorn's own cycle does for an ASGI application, without ASGI's
dictionaries, events and tasks in between, which cost as much as the rest of the gateway. Head and
first chunk of a response go out in one write: a second system call and packet per response cost a
fifth of the time.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any, Final

from starlette.types import Message
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from common.http_connection import MAX_JOINED
from common.http_headers import Headers
from gateway.errors import ClientClosedRequest, GatewayError
from gateway.http.headers import KnownHead
from gateway.http.targets import ModelTarget
from gateway.request_task import RequestRun

Send = Callable[[Any], Awaitable[None]]

logger = logging.getLogger(__name__)

_MAX_CHUNKS: Final = 64
"""More chunks are joined: each costs a buffer of the system call that forwards them."""
_LAST_CHUNK: Final = b"0\r\n\r\n"
_STATUSES_WITHOUT_BODY: Final = (204, 304)
_UNEXPECTED_ERROR: Final = b'{"error": "the gateway failed unexpectedly; see its log"}'
KEPT_BYTES: Final = 64 << 10
"""A body up to this length is read also where nobody wants it: its connection can be used on."""


class _NullEvent:
    """In place of the event that uvicorn sets for its own cycles."""

    def set(self) -> None:
        """Do nothing."""


NO_EVENT: Final = _NullEvent()


class InferenceConnection(HttpToolsProtocol):
    """What requests use of their connection, beside uvicorn's part."""

    handle_inference: Callable[[ClientRequest], Awaitable[None]]

    def replace_served(self, request: ClientRequest) -> None:
        """Let `request` go on in place of the one that is served."""
        raise NotImplementedError

    def close_unread(self) -> None:
        """Close once the client has read the response; what it sends is dropped."""
        raise NotImplementedError


class ClientRequest:
    """A request to a model. uvicorn's protocol drives it like one of its own request cycles."""

    message_event: Final = NO_EVENT
    proxy: Any = None
    begun: Any = None
    """What goes on here (`gateway.dispatch.warm_request`); None: nothing was placed for it."""
    waited_s = 0.0
    disconnected = response_started = response_complete = is_complete = False
    on_disconnect: Callable[[], None] | None = None
    """Called when the client disconnects before its response is complete."""
    is_usual = keep_alive = True
    """`is_usual`: of HTTP/1.1, and neither its connection's last one nor held back by `expect`."""
    _accepts_chunked = True
    _expects_continue = _is_chunked = False
    _buffered_bytes = 0
    _wakeup: asyncio.Future[None] | None = None
    _head = b""
    """Of the response, until it is sent."""

    def __init__(
        self,
        target: ModelTarget,
        headers: Headers,
        connection: InferenceConnection,
        unread_s: float = 0.0,
        head: KnownHead | None = None,
        body: bytes = b"",
    ) -> None:
        """`connection` has just received the request's head, which was there for `unread_s`.

        `head`: if it was not parsed again, but came with this `body`.
        """
        self.target = target
        self.headers = headers
        self.head = head
        self.loop = connection.loop
        self.run = RequestRun(self.loop, connection.tasks)
        self._connection = connection
        self._transport = connection.transport
        self._flow = connection.flow
        self._received_s = self.loop.time() - unread_s
        self._chunks = [body] if body else []
        if head is not None:
            self.is_complete = True
        else:
            parser = connection.parser
            self._accepts_chunked = parser.get_http_version() != "1.0"
            self.keep_alive = self._accepts_chunked and parser.should_keep_alive()
            self._expects_continue = connection.expect_100_continue
            self.is_usual = self.keep_alive and not self._expects_continue

    def start(self) -> None:
        """Serve the request; uvicorn waits for it when it shuts down."""
        self.run.start(self._serve())

    async def _serve(self) -> None:
        self.waited_s = max(0.0, self.loop.time() - self._received_s)
        try:
            if self._flow.write_paused:  # the client does not read its earlier responses
                await self._flow.drain()
            await self._connection.handle_inference(self)
        except Exception:
            self.fail()

    def fail(self) -> None:
        """Of an exception that nobody has expected."""
        logger.exception("request failed unexpectedly")
        if self.response_started:
            self.abort_response()
        else:
            self.respond(500, [(b"content-type", b"application/json")], _UNEXPECTED_ERROR)

    # Request body: `BodySource`, fed by the protocol

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._buffered_bytes += len(chunk)
        if self._buffered_bytes > HIGH_WATER_LIMIT:
            self._flow.pause_reading()
        self._wake_reader()

    def feed_end(self) -> None:
        self.is_complete = True
        self._wake_reader()

    def take_chunks(self) -> list[bytes]:
        """Reading from the connection continues afterwards, so that a disconnect is detected."""
        chunks, self._chunks = self._chunks, []
        if len(chunks) > _MAX_CHUNKS:
            chunks = [b"".join(chunks)]
        if self._buffered_bytes:
            if self._buffered_bytes > HIGH_WATER_LIMIT:
                self._flow.resume_reading()
            self._buffered_bytes = 0
        return chunks

    async def receive_chunks(self) -> list[bytes]:
        if self._expects_continue and not self._transport.is_closing():
            self._expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._chunks and not self.is_complete:
            if self.disconnected:
                raise ClientClosedRequest
            self._wakeup = self.loop.create_future()
            await self._wakeup
        return self.take_chunks()

    def on_shutdown(self) -> None:
        """The server waits for it, and ends it at last, by its run."""

    def connection_lost(self) -> None:
        self._wake_reader()
        if self.on_disconnect is not None and not self.response_complete:
            self.on_disconnect()

    def _wake_reader(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    # Response

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete response."""
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        self.start_response(status, lines, b"%d" % len(body))
        self.write_body(body, is_last=True)

    def start_response(self, status: int, lines: bytes, length: bytes) -> None:
        """Set the head, sent with the first body chunk; `length`: empty if it is not known."""
        self.response_started = True
        if self._expects_continue:  # 100 Continue was not sent, so the body may not come
            self.keep_alive = False
        head = status_line(status)
        if not self.keep_alive:
            lines += b"connection: close\r\n"
        if length:
            self._head = b"%b%bcontent-length: %b\r\n\r\n" % (head, lines, length)
        elif self._accepts_chunked and status not in _STATUSES_WITHOUT_BODY:
            self._is_chunked = True
            self._head = b"%b%btransfer-encoding: chunked\r\n\r\n" % (head, lines)
        else:
            self._head = b"%b%b\r\n" % (head, lines)

    def write_body(self, body: bytes, *, is_last: bool) -> None:
        """Send a part of the response; does nothing if the client has disconnected."""
        if self.disconnected:
            return
        out, self._head = self._head, b""
        if not self._is_chunked:
            if len(body) >= MAX_JOINED:
                self._transport.writelines((out, body))
                out = b""
            else:
                out += body
        elif body:
            out = b"%b%x\r\n%b\r\n%b" % (out, len(body), body, _LAST_CHUNK if is_last else b"")
        elif is_last:
            out += _LAST_CHUNK
        if out:
            self._transport.write(out)
        if is_last:
            self.response_complete = True
            if not self.keep_alive and self.is_complete:
                self._transport.close()
            elif not self.keep_alive:
                self._connection.close_unread()
            self._connection.on_response_complete()

    @property
    def is_behind(self) -> bool:
        """It has not read its response so far, although it is connected."""
        return self._flow.write_paused and not self.disconnected

    @property
    def unread_bytes(self) -> int:
        """With the system's, which asks for more only once a good part of its buffer is free."""
        kept = array("i", [0])
        with suppress(OSError):  # it is closed
            ioctl(self._transport.get_extra_info("socket").fileno(), TIOCOUTQ, kept)
        return self._transport.get_write_buffer_size() + kept[0]

    async def drain(self) -> None:
        await self._flow.drain()

    def abort_response(self, _: GatewayError | None = None, /) -> None:
        """Close the connection during a response that cannot be completed."""
        self.disconnected = True
        if self._flow.write_paused:  # close() would wait for a client that may never read on
            self._transport.abort()
        else:
            self._transport.close()


class DelegatedRequest:
    """An ASGI application around the gateway's, for one request that uvicorn serves.

    One refused half-way ends as one of inference does: uvicorn reads such a body to its end,
    however long it is, or closes the connection with bytes unread, which resets it.
    """

    def __init__(
        self, app: Any, cycle: RequestResponseCycle, close_unread: Callable[[], None]
    ) -> None:
        """`close_unread` closes the connection once the client has read the response."""
        self._app = app
        self._cycle = cycle
        self._close_unread = close_unread
        self._on_response, cycle.on_response = cycle.on_response, self._end
        self._is_unread = False

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        async def send_and_linger(message: Message) -> None:
            cycle = self._cycle
            if message["type"] == "http.response.start":
                if cycle.more_body and self._is_long(scope):
                    message = closing_connection(message)
            elif cycle.more_body and not cycle.keep_alive and not message.get("more_body"):
                cycle.keep_alive = True  # else it closes the connection at once
                self._is_unread = True
            await send(message)

        await self._app(scope, receive, send_and_linger)

    def _is_long(self, scope: Any) -> bool:
        """The body is, or will not come: its client waits for `100 Continue`."""
        if self._cycle.waiting_for_100_continue:
            return True
        return all(
            name != b"content-length" or int(value) > KEPT_BYTES for name, value in scope["headers"]
        )

    def _end(self) -> None:
        if self._is_unread:
            self._close_unread()
        self._on_response()


def closing_connection(message: Message) -> Message:
    """A response's start, with the header at which uvicorn closes the connection after it."""
    headers = [each for each in message["headers"] if each[0] != b"connection"]
    return {**message, "headers": [*headers, (b"connection", b"close")]}


def status_line(status: int) -> bytes:
    return STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status
