"""A gRPC server's connections and calls, by callbacks: HTTP/2 (RFC 9113) as gRPC uses it.

grpcio's own server takes three times the processor time for a call of four messages: each of its
events wakes the loop from a thread, and each call has tasks (measured beside Envoy 1.40). It also
keeps a call's `:authority` to itself. No push and no priorities; answers are not compressed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from hpack import Decoder
from hpack.exceptions import HPACKError

from common.content_coding import unpack
from gateway.http.headers import Headers

logger = logging.getLogger(__name__)

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_WINDOW_UPDATE, _CONTINUATION = 8, 9
_END_STREAM: Final = 0x1
_ACK: Final = 0x1
_END_HEADERS: Final = 0x4
_PADDED: Final = 0x8
_HAS_PRIORITY: Final = 0x20
FRAME_HEAD_BYTES: Final = 9
MAX_BLOCK_BYTES: Final = 128 * 1024
"""Of one call's headers, in all frames."""
_MAX_TABLE_BYTES: Final = 4096
_MAX_HEADER_BYTES: Final = 1024 * 1024
"""Of a block's headers, unpacked."""
_NO_ERROR, _PROTOCOL_ERROR, _REFUSED_STREAM = 0, 1, 7
_FRAME_BYTES: Final = 16_384
"""Of a frame's content at most, in both directions: the protocol's default."""
_FIRST_WINDOW: Final = 65_535
CALL_WINDOW: Final = 1 << 18
"""Bytes that a call's client may send before they are taken."""
_WINDOW: Final = (1 << 31) - 1
_MAX_BLOCKS: Final = 64
_MAX_KEPT_BYTES: Final = 1024
"""Of a block that is kept, as clients repeat most."""
MAX_CALLS: Final = 10_000
"""Of one connection: requests that wait for a cold model, too."""
_PREFIX: Final = 127
"""Lengths from this on take several bytes."""
_SETTING_CALLS, _SETTING_WINDOW = 3, 4
_BEGIN: Final = b"\x88\x0f\x10\x10application/grpc"
"""HPACK: status 200, and a content-type that no table keeps."""
_UNQUOTED: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 3, 5, 8, 12, 13
"""Of gRPC's status codes."""


def frame(kind: int, flags: int, number: int, content: bytes) -> bytes:
    """A frame of stream `number`; 0: of the connection."""
    return b"%b%c%c%b%b" % (
        len(content).to_bytes(3, "big"), kind, flags, number.to_bytes(4, "big"), content,
    )  # fmt: skip


def header_fragment(frame: bytes) -> bytes:
    """The part of a header block in a frame (section 6.2). Raises HPACKError."""
    content = frame[FRAME_HEAD_BYTES:]
    if frame[3] == _CONTINUATION:
        return content
    padding = 0
    if frame[4] & _PADDED:
        padding, content = (content[0], content[1:]) if content else (1, b"")
    if frame[4] & _HAS_PRIORITY:
        content = content[5:]
    if padding > len(content):
        raise HPACKError("a frame is shorter than its padding")
    return content[: len(content) - padding]


def literal(name: bytes, value: bytes) -> bytes:
    """A header of a block, of which no table keeps anything (RFC 7541, section 6.2.2)."""
    return b"\0%b%b%b%b" % (_length(name), name, _length(value), value)


def _length(text: bytes) -> bytes:
    left = len(text) - _PREFIX
    if left < 0:
        return bytes((len(text),))
    parts = [_PREFIX]
    while left >= 0x80:
        parts.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*parts, left))


class Call:
    """One call; its service's class says what its messages do."""

    window = 0
    """Bytes that its client accepts; set by the connection, as the next ones are."""
    uncredited = 0
    """Bytes taken while it was paused."""
    _is_paused = _has_begun = is_over = False
    """`is_over`: nothing is sent any more."""
    trailers = b""

    def __init__(self, connection: "GrpcConnection", number: int, headers: Headers) -> None:
        """`headers`: also those that begin with a colon."""
        self.connection = connection
        self.number = number
        self.headers = headers
        self.received = bytearray()
        self.unsent: deque[bytes] = deque()
        """Frames' contents for which its client has no window yet."""

    def on_message(self, content: bytes) -> None:
        raise NotImplementedError

    def on_end(self) -> None:
        """The client sends no more, but may read."""
        raise NotImplementedError

    def on_over(self) -> None:
        """The call has left its connection: it was finished, or its client is gone."""

    def send(self, content: bytes) -> None:
        if self.is_over:
            return
        if not self._has_begun:
            self._has_begun = True
            self.connection.write(frame(_HEADERS, _END_HEADERS, self.number, _BEGIN))
        content = b"\0%b%b" % (len(content).to_bytes(4, "big"), content)
        for at in range(0, len(content), _FRAME_BYTES):
            self.unsent.append(content[at : at + _FRAME_BYTES])
        self.connection.send_unsent(self)

    def finish(self, status: int = OK, detail: str = "", metadata: Headers | None = None) -> None:
        """End the call, once what was sent has gone."""
        if self.is_over:
            return
        self.is_over = True
        block = b"" if self._has_begun else _BEGIN
        block += literal(b"grpc-status", b"%d" % status)
        if detail:
            block += literal(b"grpc-message", quote(detail, safe=_UNQUOTED).encode())
        for name, value in metadata or ():
            block += literal(name, value)
        self.trailers = frame(_HEADERS, _END_HEADERS | _END_STREAM, self.number, block)
        self.connection.send_unsent(self)

    def pause(self) -> None:
        """Let the client send `CALL_WINDOW` bytes more at most."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self.credit(0)

    def credit(self, size: int) -> None:
        """Bytes were taken: the client may send as many again."""
        self.uncredited += size
        if self.uncredited >= CALL_WINDOW // 4 and not (self._is_paused or self.unsent):
            size, self.uncredited = self.uncredited, 0
            self.connection.write(frame(_WINDOW_UPDATE, 0, self.number, size.to_bytes(4, "big")))


CreateCall = Callable[["GrpcConnection", int, Headers], Call]


class GrpcConnection(asyncio.Protocol):
    """A client's connection."""

    transport: asyncio.Transport

    def __init__(
        self,
        services: Mapping[bytes, CreateCall],
        connections: "set[GrpcConnection]",
        *,
        max_message_bytes: int,
    ) -> None:
        """`services`: by a call's path; `connections`: has this one while it is open."""
        self._services = services
        self._connections = connections
        self._max_message_bytes = max_message_bytes
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.calls: dict[int, Call] = {}
        self._decoder = Decoder(max_header_list_size=_MAX_HEADER_BYTES)
        self._decoder.max_allowed_table_size = _MAX_TABLE_BYTES
        self._read: dict[bytes, Headers] = {}
        """By block of headers, as long as the decoder's table is unchanged."""
        self._begun = b""
        """Of a frame that is not complete."""
        self._has_preface = self._is_leaving = self._will_flush = False
        self._block: tuple[int, bytes, bool] | None = None
        """Of headers that go on: stream, what there is, and whether the call ends with them."""
        self._last = 0
        self._window = self._call_window = _FIRST_WINDOW
        self._taken = 0
        """Bytes since the client was last given window for the connection."""
        self._out: list[bytes] = []

    # Of the event loop

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._connections.add(self)
        settings = b"".join(
            name.to_bytes(2, "big") + value.to_bytes(4, "big")
            for name, value in ((_SETTING_CALLS, MAX_CALLS), (_SETTING_WINDOW, CALL_WINDOW))
        )
        more = (_WINDOW - _FIRST_WINDOW).to_bytes(4, "big")
        transport.write(frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW_UPDATE, 0, 0, more))

    def connection_lost(self, _: Exception | None) -> None:
        self._connections.discard(self)
        self.closed.set_result(None)
        calls, self.calls = self.calls, {}
        for call in calls.values():
            self._break_off(call)

    def data_received(self, data: bytes) -> None:
        if self._begun:
            data, self._begun = self._begun + data, b""
        self._will_flush = True  # at the end
        try:
            self._begun = data[self._read_frames(data) :]
        except (HPACKError, _BrokenProtocol) as error:
            logger.warning("a gRPC connection is closed", extra={"error": str(error)})
            self._go_away(_PROTOCOL_ERROR)
            self._loop.call_soon(self.transport.close)
        self._flush()

    def _read_frames(self, data: bytes) -> int:
        """Where what is no whole frame begins."""
        at, end = 0, len(data)
        if not self._has_preface:
            if not _PREFACE.startswith(data[: len(_PREFACE)]):
                raise _BrokenProtocol("the client does not speak HTTP/2")
            if end < len(_PREFACE):
                return 0
            self._has_preface, at = True, len(_PREFACE)
        while end - at >= FRAME_HEAD_BYTES:
            size = int.from_bytes(data[at : at + 3], "big")
            if size > _FRAME_BYTES:
                raise _BrokenProtocol(f"a frame has {size} bytes, of {_FRAME_BYTES} allowed")
            following = at + FRAME_HEAD_BYTES + size
            if following > end:
                break
            kind, flags = data[at + 3], data[at + 4]
            if self._block is not None:
                if kind != _CONTINUATION:
                    raise _BrokenProtocol("headers do not go on")
                self._go_on(flags, data[at:following])
            elif (handler := _HANDLERS.get(kind)) is not None:
                number = int.from_bytes(data[at + 5 : at + 9], "big") & _WINDOW
                begin = at if kind == _HEADERS else at + FRAME_HEAD_BYTES
                handler(self, flags, number, data[begin:following])
            at = following
        return at

    # Frames

    def _on_headers(self, flags: int, number: int, whole: bytes) -> None:
        self._block = number, b"", bool(flags & _END_STREAM)
        self._go_on(flags, whole)

    def _go_on(self, flags: int, whole: bytes) -> None:
        assert self._block is not None
        number, begun, is_end = self._block
        self._block = number, begun + header_fragment(whole), is_end
        if len(self._block[1]) > MAX_BLOCK_BYTES:
            raise _BrokenProtocol(f"headers have more than {MAX_BLOCK_BYTES} bytes")
        if flags & _END_HEADERS:
            self._open()

    def _open(self) -> None:
        """Begin the call whose headers are complete, or end one with its trailers."""
        assert self._block is not None
        (number, block, is_end), self._block = self._block, None
        headers = self._headers(block)
        if number <= self._last:  # trailers
            if (known := self.calls.get(number)) is not None:
                known.on_end()
            return
        if not number & 1:
            raise _BrokenProtocol(f"stream {number} is not a client's")
        self._last = number
        if self._is_leaving or len(self.calls) >= MAX_CALLS:
            self.write(frame(_RST_STREAM, 0, number, _REFUSED_STREAM.to_bytes(4, "big")))
            return
        path = next((value for name, value in headers if name == b":path"), b"")
        call = self._services.get(path, _UnknownCall)(self, number, headers)
        call.window = self._call_window
        self.calls[number] = call
        if is_end:
            call.on_end()

    def _headers(self, block: bytes) -> Headers:
        headers = self._read.get(block)
        if headers is None:
            first, count = self._table()
            found = self._decoder.decode(block, raw=True)
            headers = [(bytes(name), bytes(value)) for name, value in found]
            first_now, count_now = self._table()
            if first_now is not first or count_now != count or len(self._read) >= _MAX_BLOCKS:
                self._read.clear()
            elif len(block) <= _MAX_KEPT_BYTES:
                self._read[block] = headers
        return headers

    def _table(self) -> tuple[object, int]:
        """The newest entry of the decoder's table, and how many it has."""
        entries = self._decoder.header_table.dynamic_entries
        return entries[0] if entries else None, len(entries)

    def _on_data(self, flags: int, number: int, content: bytes) -> None:
        size = len(content)
        self._taken += size
        if self._taken >= _WINDOW // 4:
            self.write(frame(_WINDOW_UPDATE, 0, 0, self._taken.to_bytes(4, "big")))
            self._taken = 0
        call = self.calls.get(number)
        if call is None:
            if number > self._last:
                raise _BrokenProtocol(f"data of stream {number}, which is not begun")
            return
        if flags & _PADDED:
            if not size or content[0] >= size:
                raise _BrokenProtocol("a frame is shorter than its padding")
            content = content[1 : size - content[0]]
        call.credit(size)
        if call.uncredited > CALL_WINDOW:
            raise _BrokenProtocol("a call's window is exceeded")
        self._take_messages(call, content)
        if flags & _END_STREAM and number in self.calls:
            call.on_end()

    def _take_messages(self, call: Call, content: bytes) -> None:
        received = call.received
        if (
            not received
            and content[:1] == b"\0"
            and len(content) - 5 == int.from_bytes(content[1:5], "big")
        ):
            call.on_message(content[5:])  # whole, as most are
            return
        received += content
        while len(received) >= 5:  # a flag, and the length
            size = int.from_bytes(received[1:5], "big")
            if size > self._max_message_bytes:
                self._refuse(call, f"has {size} bytes")
                return
            if len(received) < 5 + size:
                return
            is_packed, message = received[0], bytes(memoryview(received)[5 : 5 + size])
            del received[: 5 + size]
            if is_packed:
                coding = dict(call.headers).get(b"grpc-encoding", b"").decode("latin-1")
                try:
                    message = unpack(message, coding, self._max_message_bytes)
                except ValueError as error:
                    self._refuse(call, str(error))
                    return
            call.on_message(message)

    def _refuse(self, call: Call, why: str) -> None:
        call.received.clear()
        allowed = f"{self._max_message_bytes} bytes are allowed"
        call.finish(RESOURCE_EXHAUSTED, f"a message {why}; {allowed}")

    def _on_reset(self, _: int, number: int, __: bytes) -> None:
        call = self.calls.pop(number, None)
        if call is not None:
            self._break_off(call)

    def _break_off(self, call: Call) -> None:
        call.is_over = True
        call.unsent.clear()
        call.on_over()

    def _on_settings(self, flags: int, _: int, content: bytes) -> None:
        if flags & _ACK:
            return
        for at in range(0, len(content) - 5, 6):
            if int.from_bytes(content[at : at + 2], "big") == _SETTING_WINDOW:
                window = int.from_bytes(content[at + 2 : at + 6], "big")
                more, self._call_window = window - self._call_window, window
                for call in self.calls.values():
                    call.window += more
        self.write(frame(_SETTINGS, _ACK, 0, b""))
        self._send_all()

    def _on_ping(self, flags: int, _: int, content: bytes) -> None:
        if not flags & _ACK:
            self.write(frame(_PING, _ACK, 0, content))

    def _on_window(self, _: int, number: int, content: bytes) -> None:
        more = int.from_bytes(content, "big") & _WINDOW
        if not number:
            self._window += more
            self._send_all()
        elif (call := self.calls.get(number)) is not None:
            call.window += more
            self.send_unsent(call)

    # Sending

    def _send_all(self) -> None:
        for call in list(self.calls.values()):
            if call.unsent:
                self.send_unsent(call)

    def send_unsent(self, call: Call) -> None:
        """Send what the client has window for, and the end of a call that is over."""
        unsent = call.unsent
        while unsent and (room := min(self._window, call.window)) > 0:
            content = unsent.popleft()
            if len(content) > room:
                unsent.appendleft(content[room:])
                content = content[:room]
            self._window -= len(content)
            call.window -= len(content)
            self.write(frame(_DATA, 0, call.number, content))
        if unsent:
            return
        if call.is_over and self.calls.pop(call.number, None) is not None:
            self.write(call.trailers)
            call.on_over()
            if self._is_leaving and not self.calls:
                self._loop.call_soon(self.transport.close)
        elif not call.is_over:
            call.credit(0)

    def write(self, data: bytes) -> None:
        self._out.append(data)
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        data, self._out = b"".join(self._out), []
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def pause_writing(self) -> None:
        """Take nothing more of a client that does not read: it gets no more to read."""
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def leave(self) -> None:
        """Have the client send its next calls elsewhere; close when those in progress are over."""
        self._is_leaving = True
        self._go_away(_NO_ERROR)
        if not self.calls:
            self._loop.call_soon(self.transport.close)

    def _go_away(self, code: int) -> None:
        last = self._last.to_bytes(4, "big")
        self.write(frame(_GOAWAY, 0, 0, last + code.to_bytes(4, "big")))


_HANDLERS: Final[Mapping[int, Callable[[GrpcConnection, int, int, bytes], None]]] = {
    _DATA: GrpcConnection._on_data,
    _HEADERS: GrpcConnection._on_headers,
    _RST_STREAM: GrpcConnection._on_reset,
    _SETTINGS: GrpcConnection._on_settings,
    _PING: GrpcConnection._on_ping,
    _WINDOW_UPDATE: GrpcConnection._on_window,
}


class _BrokenProtocol(Exception):
    """The connection cannot go on."""


class _UnknownCall(Call):
    def on_message(self, content: bytes) -> None:
        self.finish(UNIMPLEMENTED, "there is no such method")

    def on_end(self) -> None:
        self.finish(UNIMPLEMENTED, "there is no such method")
