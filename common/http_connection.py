"""One connection of an HTTP/1.1 client, on httptools: bodies whole, as they come, or in place."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from copy import copy
from http import HTTPStatus
from typing import Final, cast

import httptools

from common.http_headers import Headers

MAX_HEAD_BYTES: Final = 64 << 10
_HIGH_WATER: Final = 1 << 20
"""Bytes of a body that nobody has taken, above which no more are read."""
MAX_JOINED: Final = 16 << 10
"""Up to this size a copy is cheaper than a second buffer to write."""


class HttpError(Exception):
    """An exchange without a usable response."""


class NotConnected(HttpError):
    """No connection: nothing was sent."""


class ConnectionLost(HttpError):
    """The connection ended before the response was complete; the request may be executed."""


class InvalidResponse(HttpError):
    """The response is not HTTP/1.1, or not of the length that was asked for."""


class TimedOut(HttpError):
    """The response did not come in time; the request may be executed."""


class TooLarge(HttpError):
    """The response is over the limit; its rest is not read."""


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    status = 0
    head_s = 0.0
    """When the response's head had come, by `time.monotonic`."""
    _is_cut = False
    _untaken_bytes = 0
    _place: _Place | None = None
    _error: HttpError | None = None
    _waiter: asyncio.Future[None] | None = None

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.is_closed = False
        self.used_total = 0
        self.idle_since_s = 0.0
        self._writable: asyncio.Future[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._chunks: list[bytes] = []
        self._reset()

    def _reset(self) -> None:
        """What an exchange that has ended leaves behind on a connection that is used again."""
        self.headers: Headers = []
        self.has_head = self.is_complete = self._keeps_alive = False
        self.received_bytes = 0

    # The exchange

    def start(
        self, parts: Sequence[memoryview] | None = None, *, stall_s: float | None = None
    ) -> None:
        """Begin an exchange; a response with status 200 must fill `parts` exactly, if given.

        `stall_s`: the longest time without a byte of the response.
        """
        if self.used_total:
            self._reset()
        if parts is not None:
            self._place = _Place(self, parts)
        self.used_total += 1
        if stall_s is not None:
            self._watch = self.loop.call_later(stall_s, self._check_stall, stall_s, 0)

    def write(self, head: bytes, chunks: Sequence[bytes] = ()) -> None:
        """Send the head of a request and its body's parts, in one system call if possible."""
        if self._transport is None or self.is_closed:
            return
        if not chunks:
            self._transport.write(head)
        elif len(chunks) == 1 and len(chunks[0]) < MAX_JOINED:
            self._transport.write(head + chunks[0])
        else:
            self._transport.writelines([head, *chunks])

    async def drain(self) -> None:
        """Wait until the write buffer has room or the server has responded."""
        if self._writable is not None and not self.is_closed:
            await self._writable

    async def wait_head(self) -> None:
        """Wait for status and headers. Raises ConnectionLost, InvalidResponse, TimedOut."""
        while not self.has_head:
            await self._wait()

    async def wait_body(self) -> None:
        """Wait for a chunk of the body, or its end; raises as `wait_head`."""
        while not self._chunks and not self.is_complete:
            await self._wait()

    async def wait_end(self) -> None:
        """Wait until a response in place is complete; raises as `wait_head`."""
        while not self.is_complete:
            await self._wait()

    @property
    def has_body(self) -> bool:
        """True if a chunk of the body, or its end, was received and not taken."""
        return bool(self._chunks) or self.is_complete

    @property
    def is_taken(self) -> bool:
        """True if the whole body was received and taken."""
        return self.is_complete and not self._chunks

    def take_body(self) -> list[bytes]:
        """Chunks of the response's body received since the last call."""
        chunks, self._chunks = self._chunks, []
        if self._untaken_bytes > _HIGH_WATER and self._transport is not None and not self.is_closed:
            self._transport.resume_reading()
        self._untaken_bytes = 0
        return chunks

    async def read_body(self, max_bytes: int) -> bytes:
        """The rest of the body; raises as `wait_head`, and TooLarge."""
        chunks: list[bytes] = []
        size = 0
        while not self.is_taken:
            await self.wait_body()
            taken = self.take_body()
            size += sum(map(len, taken))
            if size > max_bytes:
                raise TooLarge(f"a response of over {max_bytes} bytes")
            chunks += taken
        return b"".join(chunks)

    def end(self) -> None:
        """No more of this exchange is wanted; what is not complete ends the connection."""
        if self._chunks:
            self.take_body()
        self._place = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if not self.can_be_reused:
            self.close()

    def cut(self) -> None:
        """The request is not sent to its end: the connection is not used again."""
        self._is_cut = True

    def close(self) -> None:
        """Abort the connection; the server sees its client disconnect."""
        self.is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        if self._transport is not None:
            self._transport.abort()

    @property
    def can_be_reused(self) -> bool:
        """Whether the response is complete, the request was sent, and both sides go on."""
        return (
            self.is_complete
            and self._keeps_alive
            and not self._is_cut
            and not self.is_closed
            and self._transport is not None
            and not self._transport.get_write_buffer_size()
        )

    async def _wait(self) -> None:
        if self.is_closed:
            raise self._lost()
        self._waiter = waiter = self.loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _lost(self) -> Exception:
        """Why the response does not come; raised itself, the kept error would be a cycle."""
        return copy(self._error) if self._error else ConnectionLost("the connection is closed")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: HttpError) -> None:
        self._error = self._error or error
        self.close()
        self._wake()

    def _check_stall(self, stall_s: float, seen_bytes: int) -> None:
        """Fail if nothing has come since; a reader that does not take what came is not waited."""
        if self.is_complete:
            return
        if self.received_bytes == seen_bytes and self._untaken_bytes <= _HIGH_WATER:
            self._fail(TimedOut(f"nothing came for {stall_s:g} s after {seen_bytes} bytes"))
            return
        arguments = (stall_s, self.received_bytes)
        self._watch = self.loop.call_later(stall_s, self._check_stall, *arguments)

    # Of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """Parse, and wake the reader once per segment: a small response costs one wake-up."""
        if not self.used_total or self.is_complete:  # nothing was asked
            self.close()
        if self.is_closed:
            return
        self.received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(InvalidResponse(f"the response is no HTTP/1.1: {error}"))
        if not self.has_head and self.received_bytes > MAX_HEAD_BYTES:
            self._fail(InvalidResponse(f"a head must have at most {MAX_HEAD_BYTES} bytes"))
        if self._place is not None and self._transport is not None and not self.is_closed:
            self._read_in_place(self._place, self._transport)
        self._wake()

    def _read_in_place(self, place: _Place, transport: asyncio.Transport) -> None:
        """Let the loop fill what is left of the place; the parser sees no more of the body."""
        if self.status == HTTPStatus.OK and self.has_head and not self.is_complete:
            self._keeps_alive = self._parser.should_keep_alive()
            self._parser = httptools.HttpResponseParser(self)  # this one never sees the end
            _set_protocol(transport, place)

    def filled(self, byte_count: int, *, is_last: bool) -> None:
        """So many more bytes are in their place."""
        self.received_bytes += byte_count
        if is_last and self._transport is not None and not self.is_closed:
            self.is_complete = True
            _set_protocol(self._transport, self)
            self._wake()

    def eof_received(self) -> bool:
        is_end = self.has_head and not self._has_length()
        self.is_complete = self.is_complete or is_end
        self._fail(ConnectionLost("the server ended the connection"))
        return False

    def _has_length(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionLost(f"the connection was lost: {exc or 'closed'}"))
        self.resume_writing()
        del self._parser  # it refers back

    def pause_writing(self) -> None:
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # Of the parser

    def on_message_begin(self) -> None:
        """Fail on a second response, which belongs to no request."""
        if self.is_complete:
            raise InvalidResponse("more than one response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers are left out."""
        if not self.has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Accept the head, or skip that of an interim response (1xx)."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers = []
            return
        self.has_head, self.head_s = True, time.monotonic()
        self.resume_writing()
        if self._place is not None and self.status == HTTPStatus.OK:
            length = dict(self.headers).get(b"content-length", b"none").decode()
            if length != str(self._place.left_bytes):
                text = f"content-length must be {self._place.left_bytes}, was {length}"
                self._fail(InvalidResponse(text))

    def on_body(self, body: bytes) -> None:
        if self._place is not None and self.status == HTTPStatus.OK:
            self._place.copy(body)
            return
        self._chunks.append(body)
        self._untaken_bytes += len(body)
        if self._untaken_bytes > _HIGH_WATER and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.has_head and self._error is None:
            self.is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()


class _Place(asyncio.BufferedProtocol):
    """Memory for a body, into which the loop reads, or decrypts, what comes after the head."""

    def __init__(self, connection: Connection, parts: Sequence[memoryview]) -> None:
        self._connection = connection
        self._parts = deque(part for part in parts if len(part))
        self.left_bytes = sum(map(len, self._parts))

    def copy(self, body: bytes) -> None:
        """Put what came with the head in its place."""
        came = memoryview(body)[: self.left_bytes]
        while len(came):
            count = min(len(came), len(self._parts[0]))
            self._parts[0][:count] = came[:count]
            self._advance(count)
            came = came[count:]

    def _advance(self, byte_count: int) -> None:
        part = self._parts.popleft()
        self.left_bytes -= byte_count
        if byte_count < len(part):
            self._parts.appendleft(part[byte_count:])

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parts[0]

    def buffer_updated(self, nbytes: int) -> None:
        self._advance(nbytes)
        self._connection.filled(nbytes, is_last=not self._parts)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


def _set_protocol(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Between two reads: libuv is told how to read when it begins to."""
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()
