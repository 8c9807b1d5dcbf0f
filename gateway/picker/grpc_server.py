"""A gRPC server whose calls are driven by callbacks: HTTP/2 (RFC 9113) as gRPC uses it.

grpcio's own server takes three times the processor time for a call of four messages: each of its
events wakes the loop from a thread, and each call has tasks (measured beside Envoy 1.40). Served
are calls of proxies and probes: no compression, push or priorities.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from hpack.exceptions import HPACKError

from gateway.grpc.authority_relay import (
    FRAME_HEAD_BYTES,
    MAX_BLOCK_BYTES,
    header_decoder,
    header_fragment,
)

logger = logging.getLogger(__name__)

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_WINDOW_UPDATE, _CONTINUATION = 8, 9
_END_STREAM: Final = 0x1
_ACK: Final = 0x1
_END_HEADERS: Final = 0x4
_PADDED: Final = 0x8
_PROTOCOL_ERROR, _FLOW_CONTROL_ERROR, _REFUSED_STREAM, _CALM = 1, 3, 7, 11
_FRAME_BYTES: Final = 16_384
"""Of a frame's content at most, in both directions: the protocol's default."""
_FIRST_WINDOW: Final = 65_535
CALL_WINDOW: Final = 1 << 18
"""Bytes that a call's client may send before they are taken."""
_WINDOW: Final = (1 << 31) - 1
_MAX_BLOCKS: Final = 64
MAX_CALLS: Final = 10_000
"""Of one connection: requests that wait for a cold model, too."""
_SETTING_CALLS, _SETTING_WINDOW = 3, 4
_BEGIN: Final = b"\x88\x0f\x10\x10application/grpc"
"""HPACK: status 200, and a content-type that no table keeps."""
OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 3, 5, 8, 12, 13
"""Of gRPC's status codes."""


def frame(kind: int, flags: int, number: int, content: bytes) -> bytes:
    """A frame of stream `number`; 0: of the connection."""
    return b"%b%c%c%b%b" % (
        len(content).to_bytes(3, "big"), kind, flags, number.to_bytes(4, "big"), content,
    )  # fmt: skip


class Call:
    """One call; its service's class says what its messages do."""

    window = 0
    """Bytes that its client accepts; set by the connection, as the next ones are."""
    uncredited = 0
    """Bytes taken while it was paused."""
    _is_paused = _has_begun = is_over = has_ended = False
    """`is_over`: nothing is sent any more; `has_ended`: nothing comes any more."""
    trailers = b""

    def __init__(self, connection: "GrpcConnection", number: int) -> None:
        self.connection = connection
        self.number = number
        self.received = bytearray()
        self.unsent: deque[bytes] = deque()
        """Frames' contents for which its client has no window yet."""

    def on_message(self, content: bytes) -> None:
        raise NotImplementedError

    def on_end(self) -> None:
        """The client sends no more, or is gone, or the call was finished; called once."""
        raise NotImplementedError

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

    def finish(self, status: int = OK, detail: str = "") -> None:
        """End the call, once what was sent has gone."""
        if self.is_over:
            return
        self.is_over = True
        begin = b"" if self._has_begun else _BEGIN
        text = str(status).encode()
        trailers = b"%b\0\x0bgrpc-status%c%b" % (begin, len(text), text)
        if message := detail.encode("ascii", "replace").replace(b"%", b"%25")[:120]:
            trailers += b"\0\x0cgrpc-message%c%b" % (len(message), message)
        self.trailers = frame(_HEADERS, _END_HEADERS | _END_STREAM, self.number, trailers)
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


CreateCall = Callable[["GrpcConnection", int], Call]


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
        self._decoder = header_decoder()
        self._paths: dict[bytes, bytes] = {}
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
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            _DATA: self._on_data,
            _HEADERS: self._on_headers,
            _RST_STREAM: self._on_reset,
            _SETTINGS: self._on_settings,
            _PING: self._on_ping,
            _WINDOW_UPDATE: self._on_window,
        }

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
            code = error.code if isinstance(error, _BrokenProtocol) else _PROTOCOL_ERROR
            self.write(
                frame(_GOAWAY, 0, 0, self._last.to_bytes(4, "big") + code.to_bytes(4, "big"))
            )
            self._flush()
            self.transport.close()
            return
        self._flush()

    def _read_frames(self, data: bytes) -> int:
        """Where what is no whole frame begins."""
        at, end = 0, len(data)
        if not self._has_preface:
            if not _PREFACE.startswith(data[: len(_PREFACE)]):
                _fail("the client does not speak HTTP/2")
            if end < len(_PREFACE):
                return 0
            self._has_preface, at = True, len(_PREFACE)
        while end - at >= FRAME_HEAD_BYTES:
            size = int.from_bytes(data[at : at + 3], "big")
            if size > _FRAME_BYTES:
                _fail(f"a frame has {size} bytes, of {_FRAME_BYTES} allowed")
            following = at + FRAME_HEAD_BYTES + size
            if following > end:
                break
            kind, flags = data[at + 3], data[at + 4]
            if self._block is not None:
                if kind != _CONTINUATION:
                    _fail("headers do not go on")
                self._go_on(flags, data[at:following])
            elif (handler := self._handlers.get(kind)) is not None:
                number = int.from_bytes(data[at + 5 : at + 9], "big") & _WINDOW
                begin = at if kind == _HEADERS else at + FRAME_HEAD_BYTES
                handler(flags, number, data[begin:following])
            at = following
        return at

    # Frames

    def _on_headers(self, flags: int, number: int, whole: bytes) -> None:
        self._block = number, header_fragment(whole), bool(flags & _END_STREAM)
        if flags & _END_HEADERS:
            self._open()

    def _go_on(self, flags: int, whole: bytes) -> None:
        assert self._block is not None
        number, begun, is_end = self._block
        self._block = number, begun + header_fragment(whole), is_end
        if len(self._block[1]) > MAX_BLOCK_BYTES:
            _fail(f"headers have more than {MAX_BLOCK_BYTES} bytes", _CALM)
        if flags & _END_HEADERS:
            self._open()

    def _open(self) -> None:
        """Begin the call whose headers are complete, or end one with its trailers."""
        assert self._block is not None
        (number, block, is_end), self._block = self._block, None
        path = self._path(block)
        if (known := self.calls.get(number)) is not None:
            self._end(known)
            return
        if number <= self._last or not number & 1:
            if number <= self._last:
                return  # trailers of a call that is over
            _fail(f"stream {number} is not a client's")
        self._last = number
        if self._is_leaving or len(self.calls) >= MAX_CALLS:
            self.write(frame(_RST_STREAM, 0, number, _REFUSED_STREAM.to_bytes(4, "big")))
            return
        call = self._services.get(path, _UnknownCall)(self, number)
        call.window = self._call_window
        self.calls[number] = call
        if is_end:
            self._end(call)

    def _path(self, block: bytes) -> bytes:
        path = self._paths.get(block)
        if path is None:
            first, count = self._table()
            headers = self._decoder.decode(block, raw=True)
            path = next((bytes(value) for name, value in headers if name == b":path"), b"")
            first_now, count_now = self._table()
            if first_now is not first or count_now != count or len(self._paths) >= _MAX_BLOCKS:
                self._paths.clear()
            else:
                self._paths[block] = path
        return path

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
                _fail(f"data of stream {number}, which is not begun")
            return
        if flags & _PADDED:
            if not size or content[0] >= size:
                _fail("a frame is shorter than its padding")
            content = content[1 : size - content[0]]
        call.credit(size)
        if call.uncredited > CALL_WINDOW:
            _fail("a call's window is exceeded", _FLOW_CONTROL_ERROR)
        self._take_messages(call, content)
        if flags & _END_STREAM and number in self.calls:
            self._end(call)

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
            if received[0] or size > self._max_message_bytes:
                why = f"a message may have {self._max_message_bytes} bytes, and no compression"
                call.finish(RESOURCE_EXHAUSTED, why)
                received.clear()
                return
            if len(received) < 5 + size:
                return
            message = bytes(received[5 : 5 + size])
            del received[: 5 + size]
            call.on_message(message)

    def _on_reset(self, _: int, number: int, __: bytes) -> None:
        call = self.calls.pop(number, None)
        if call is not None:
            self._break_off(call)

    def _break_off(self, call: Call) -> None:
        call.is_over = True
        call.unsent.clear()
        self._end(call)

    def _end(self, call: Call) -> None:
        if not call.has_ended:
            call.has_ended = True
            call.on_end()

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
        while unsent and len(unsent[0]) <= min(self._window, call.window):
            content = unsent.popleft()
            self._window -= len(content)
            call.window -= len(content)
            self.write(frame(_DATA, 0, call.number, content))
        if unsent:
            return
        if call.is_over and self.calls.pop(call.number, None) is not None:
            self.write(call.trailers)
            self._end(call)
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
        if self._out:
            data, self._out = b"".join(self._out), []
            self.transport.write(data)

    def pause_writing(self) -> None:
        """Take nothing more of a client that does not read: it gets no more to read."""
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def leave(self) -> None:
        """Have the client send its next calls elsewhere; close when those in progress are over."""
        self._is_leaving = True
        self.write(frame(_GOAWAY, 0, 0, self._last.to_bytes(4, "big") + bytes(4)))
        if not self.calls:
            self._loop.call_soon(self.transport.close)


class _BrokenProtocol(Exception):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _fail(message: str, code: int = _PROTOCOL_ERROR) -> NoReturn:
    raise _BrokenProtocol(message, code)


class _UnknownCall(Call):
    def on_message(self, content: bytes) -> None:
        self.finish(UNIMPLEMENTED, "there is no such method")

    def on_end(self) -> None:
        self.finish(UNIMPLEMENTED, "there is no such method")
