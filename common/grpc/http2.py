"""A gRPC server's connections and calls, by callbacks: HTTP/2 (RFC 9113) as gRPC uses it.

grpcio's own server takes three times the processor time for a call of four messages: each of its
events wakes the loop from a thread, and each call has tasks (measured beside Envoy 1.40). It also
keeps a call's `:authority` to itself. No push and no priorities; answers are not compressed.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from hpack import Decoder
from hpack.exceptions import HPACKError

from common.grpc.call import CALL_WINDOW, RESOURCE_EXHAUSTED, UNAVAILABLE, UNIMPLEMENTED, Call
from common.grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    FRAME_HEAD_BYTES,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    frame_problem,
    header_fragment,
    is_request,
    is_well_formed,
)  # fmt: skip
from common.http_headers import Headers

logger = logging.getLogger(__name__)

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_BLOCK_BYTES: Final = 128 * 1024
"""Of one call's headers, in all frames."""
_MAX_TABLE_BYTES: Final = 4096
_MAX_HEADER_BYTES: Final = 1024 * 1024
"""Of a block's headers, unpacked."""
_NO_ERROR, _PROTOCOL_ERROR, _FLOW_CONTROL_ERROR, _REFUSED_STREAM, _CANCEL = 0, 1, 3, 7, 8
_FIRST_WINDOW: Final = 65_535
_WINDOW: Final = (1 << 31) - 1
_MAX_BLOCKS: Final = 64
_MAX_KEPT_BYTES: Final = 1024
"""Of a block that is kept, as clients repeat most."""
MAX_CALLS: Final = 10_000
"""Of one connection: requests that wait for a cold model, too."""
_STEERING_S, _STEERING_BURST_S = 0.001, 10.0
"""Of a client: resets of unanswered calls, its own and those it provokes (CVE-2025-8671), pings and
settings: 1000 a second, and 10,000 at once."""
_CHECK_S: Final = 30.0
"""In which there must be the preface; of a message begun, either way, a byte in twice the time."""
_KEEPALIVE_S: Final = 60
"""Of silence, after which the kernel asks whether the client is there; most vanish with a word."""
_SETTING_CALLS, _SETTING_WINDOW = 3, 4
_ALLOWED: Final = {2: (0, 1), 5: (FRAME_BYTES, (1 << 24) - 1)}
"""Least and greatest values of a client's settings: push, a frame's size."""


class Budget(Protocol):
    """Bytes of all messages that are not complete."""

    def may_take(self, more: int) -> bool:
        """Take it, if there is so much."""

    def release(self, held_bytes: int) -> None: ...


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
        budget: Budget | None,
    ) -> None:
        """`services`: by a call's path; `connections`: has this one while it is open."""
        self._budget = budget
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
        self._block: tuple[int, bytearray, bool] | None = None
        """Of headers that go on: stream, what there is, and whether the call ends with them."""
        self._block_bytes = 0
        """Of its frames, also those without content."""
        self._last = 0
        self._window = self._call_window = _FIRST_WINDOW
        self._taken = 0
        """Bytes since the client was last given window for the connection."""
        self._out: list[bytes] = []
        self._stalled: dict[int, Call] = {}
        """Calls with something unsent."""
        self._has_room = False
        """There may be more for them since the bytes that are being read."""
        self._steered_until_s = 0.0
        self._unread_bytes = 0
        """Of the transport, when that was checked last."""

    # Of the event loop

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        self._connections.add(self)
        settings = b"".join(
            name.to_bytes(2, "big") + value.to_bytes(4, "big")
            for name, value in ((_SETTING_CALLS, MAX_CALLS), (_SETTING_WINDOW, CALL_WINDOW))
        )
        more = (_WINDOW - _FIRST_WINDOW).to_bytes(4, "big")
        transport.write(frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, more))
        self._timer = self._loop.call_later(_CHECK_S, self._check)

    def _check(self) -> None:
        """Drop a connection without preface, or whose client does not read; calls that stand still.

        Of a stalled answer the client opens no window; of a message, no more comes.
        """
        unread_bytes = self.transport.get_write_buffer_size()
        if not self._has_preface or (unread_bytes and unread_bytes == self._unread_bytes):
            self.transport.abort()
            return
        self._unread_bytes = unread_bytes
        for call in list(self.calls.values()):
            progress = call.begun_bytes, sum(map(len, call.unsent))
            if progress == call.progress != (0, 0):
                self._reset(call.number, _CANCEL)
                self._remove(call.number)
            call.progress = progress
        self._timer = self._loop.call_later(_CHECK_S, self._check)

    def connection_lost(self, _: Exception | None) -> None:
        self._timer.cancel()
        self._connections.discard(self)
        self.closed.set_result(None)
        for number in list(self.calls):
            self._remove(number)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._begun:
            data, self._begun = self._begun + data, b""
        self._will_flush = True  # at the end
        try:
            self._begun = data[self._read_frames(data) :]
            if self._has_room:
                self._send_all()
        except (HPACKError, _BrokenProtocol) as error:
            logger.warning("a gRPC connection is closed", extra={"error": str(error)})
            self._go_away(getattr(error, "code", _PROTOCOL_ERROR))
            self._flush()
            self.transport.close()
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
            if size > FRAME_BYTES:
                raise _BrokenProtocol(f"a frame has {size} bytes, of {FRAME_BYTES} allowed")
            following = at + FRAME_HEAD_BYTES + size
            if following > end:
                break
            kind, flags = data[at + 3], data[at + 4]
            if self._block is not None:
                begun = self._block[0].to_bytes(4, "big")
                if kind != CONTINUATION or data[at + 5 : at + 9] != begun:
                    raise _BrokenProtocol("headers do not go on")
                self._go_on(flags, data[at:following])
            else:
                number = int.from_bytes(data[at + 5 : at + 9], "big") & _WINDOW
                if problem := frame_problem(kind, flags, number, size):
                    raise _BrokenProtocol(problem)
                if (handler := _HANDLERS.get(kind)) is not None:
                    begin = at if kind == HEADERS else at + FRAME_HEAD_BYTES
                    handler(self, flags, number, data[begin:following])
            at = following
        return at

    # Frames

    def _on_headers(self, flags: int, number: int, whole: bytes) -> None:
        self._block, self._block_bytes = (number, bytearray(), bool(flags & END_STREAM)), 0
        self._go_on(flags, whole)

    def _go_on(self, flags: int, whole: bytes) -> None:
        assert self._block is not None
        self._block[1].extend(header_fragment(whole))
        self._block_bytes += len(whole)
        if self._block_bytes > MAX_BLOCK_BYTES:
            raise _BrokenProtocol(f"headers have more than {MAX_BLOCK_BYTES} bytes")
        if flags & END_HEADERS:
            self._open()

    def _open(self) -> None:
        """Begin the call whose headers are complete, or end one with its trailers."""
        assert self._block is not None
        (number, block, is_end), self._block = self._block, None
        headers = self._headers(bytes(block))
        if number <= self._last:  # trailers
            if (known := self.calls.get(number)) is not None and not known.is_over:
                if not is_end:
                    raise _BrokenProtocol(f"stream {number} goes on after its trailers")
                self._end(known)
            return
        if not number & 1:
            raise _BrokenProtocol(f"stream {number} is not a client's")
        self._last = number
        if self._is_leaving or len(self.calls) >= MAX_CALLS:
            self._reset(number, _REFUSED_STREAM)
            return
        if not is_request(headers):
            self._steer()
            self._reset(number, _PROTOCOL_ERROR)
            return
        path = next((value for name, value in headers if name == b":path"), b"")
        call = self._services.get(path, _UnknownCall)(self, number, headers)
        self.calls[number] = call
        if is_end:
            self._end(call)

    def _end(self, call: Call) -> None:
        if call.has_ended:
            raise _BrokenProtocol(f"stream {call.number} goes on after its end")
        call.has_ended = True
        self._count(call)
        call.on_end()

    def _headers(self, block: bytes) -> Headers:
        """Of a block; none, if they are not well-formed. Raises HPACKError."""
        headers = self._read.get(block)
        if headers is None:
            first, count = self._table()
            found = self._decoder.decode(block, raw=True)
            headers = [(bytes(name), bytes(value)) for name, value in found]
            headers = headers if is_well_formed(headers) else []
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
            self.write(frame(WINDOW_UPDATE, 0, 0, self._taken.to_bytes(4, "big")))
            self._taken = 0
        call = self.calls.get(number)
        if call is None:
            if number > self._last:
                raise _BrokenProtocol(f"data of stream {number}, which is not begun")
            return
        if call.is_over:
            return
        if call.has_ended:
            raise _BrokenProtocol(f"stream {number} goes on after its end")
        if flags & PADDED:
            if not size or content[0] >= size:
                raise _BrokenProtocol("a frame is shorter than its padding")
            content = content[1 : size - content[0]]
        call.credit(size)
        if call.uncredited > CALL_WINDOW:
            raise _BrokenProtocol("a call's window is exceeded")
        self._take_messages(call, content)
        if call.is_over:
            return
        if flags & END_STREAM:
            self._end(call)
        elif not self._count(call):
            call.received.clear()
            call.finish(UNAVAILABLE, "messages of other calls fill the memory; try again later")

    def _count(self, call: Call) -> bool:
        """Whether the budget has room for what has come of a call's messages."""
        more = call.begun_bytes - call.counted_bytes
        if self._budget is None or not more:
            return True
        if more < 0:
            self._budget.release(-more)
        elif not self._budget.may_take(more):
            return False
        call.counted_bytes += more
        return True

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
                self._take_packed(call, message)
            else:
                call.on_message(message)
            if call.is_over:
                received.clear()
                return

    def _take_packed(self, call: Call, message: bytes) -> None:
        coding = dict(call.headers).get(b"grpc-encoding", b"").decode("latin-1")
        try:
            call.on_packed(message, coding, self._max_message_bytes)
        except ValueError as error:
            self._refuse(call, str(error))

    def _refuse(self, call: Call, why: str) -> None:
        call.received.clear()
        allowed = f"{self._max_message_bytes} bytes are allowed"
        call.finish(RESOURCE_EXHAUSTED, f"a message {why}; {allowed}")

    def _reset(self, number: int, code: int) -> None:
        self.write(frame(RST_STREAM, 0, number, code.to_bytes(4, "big")))

    def _on_reset(self, _: int, number: int, __: bytes) -> None:
        if number > self._last:
            raise _BrokenProtocol(f"reset of stream {number}, which is not begun")
        call = self._remove(number)
        if call is not None and not call.has_begun:
            self._steer()

    def _steer(self) -> None:
        """Count a frame that costs the client nothing, but the gateway work or an answer."""
        now_s = self._loop.time()
        self._steered_until_s = max(self._steered_until_s, now_s) + _STEERING_S
        if self._steered_until_s > now_s + _STEERING_BURST_S:
            raise _BrokenProtocol("the client resets calls, pings, or sends settings too often")

    def _remove(self, number: int) -> Call | None:
        """Break a call off, if it is in progress."""
        call = self.calls.pop(number, None)
        if call is not None:
            self._stalled.pop(number, None)
            call.is_over = call.has_ended = True
            self._count(call)
            call.unsent.clear()
            call.on_over()
            self._close_if_left()
        return call

    def _on_settings(self, flags: int, _: int, content: bytes) -> None:
        if flags & ACK:
            return
        self._steer()
        if len(content) % 6:
            raise _BrokenProtocol(f"settings have {len(content)} bytes, no multiple of 6")
        for at in range(0, len(content), 6):
            name = int.from_bytes(content[at : at + 2], "big")
            value = int.from_bytes(content[at + 2 : at + 6], "big")
            least, greatest = _ALLOWED.get(name, (0, value))
            if not least <= value <= greatest:
                raise _BrokenProtocol(
                    f"setting {name} is {value}, of {least} to {greatest} allowed"
                )
            if name == _SETTING_WINDOW:
                self._call_window = self._opened(0, value)
                self._has_room = True
        self.write(frame(SETTINGS, ACK, 0, b""))

    def _opened(self, window: int, more: int) -> int:
        """A window with what a client adds to it."""
        window += more
        if window > _WINDOW:
            problem = f"a window has {window} bytes, of {_WINDOW} allowed"
            raise _BrokenProtocol(problem, _FLOW_CONTROL_ERROR)
        return window

    def _on_ping(self, flags: int, _: int, content: bytes) -> None:
        if not flags & ACK:
            self._steer()
            self.write(frame(PING, ACK, 0, content))

    def _on_window(self, _: int, number: int, content: bytes) -> None:
        more = int.from_bytes(content, "big") & _WINDOW
        if number > self._last or not more:
            raise _BrokenProtocol(f"a window's update of stream {number} has no effect")
        if not number:
            self._window = self._opened(self._window, more)
            self._has_room = True
        elif (call := self.calls.get(number)) is not None:
            call.window += more
            if self._call_window + call.window > _WINDOW:
                self._steer()
                self._reset(number, _FLOW_CONTROL_ERROR)
                self._remove(number)
            else:
                self.send_unsent(call)

    # Sending

    def _send_all(self) -> None:
        self._has_room = False
        for call in list(self._stalled.values()):
            if self._window <= 0:
                break
            self.send_unsent(call)

    def send_unsent(self, call: Call) -> None:
        """Send what the client has window for, and the end of a call that is over."""
        unsent = call.unsent
        while unsent and (room := min(self._window, self._call_window + call.window)) > 0:
            content = unsent.popleft()
            if len(content) > room:
                unsent.appendleft(content[room:])
                content = content[:room]
            self._window -= len(content)
            call.window -= len(content)
            self.write(frame(DATA, 0, call.number, content))
        if unsent:
            self._stalled[call.number] = call
            return
        self._stalled.pop(call.number, None)
        if call.is_over and call.number in self.calls:
            self.write(call.trailers)
            self._remove(call.number)
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
        self._close_if_left()

    def _close_if_left(self) -> None:
        if self._is_leaving and not self.calls:
            self._loop.call_soon(self.transport.close)

    def _go_away(self, code: int) -> None:
        last = self._last.to_bytes(4, "big")
        self.write(frame(GOAWAY, 0, 0, last + code.to_bytes(4, "big")))


_HANDLERS: Final[Mapping[int, Callable[[GrpcConnection, int, int, bytes], None]]] = {
    DATA: GrpcConnection._on_data,
    HEADERS: GrpcConnection._on_headers,
    RST_STREAM: GrpcConnection._on_reset,
    SETTINGS: GrpcConnection._on_settings,
    PING: GrpcConnection._on_ping,
    WINDOW_UPDATE: GrpcConnection._on_window,
}


class _BrokenProtocol(Exception):
    """The connection cannot go on."""

    def __init__(self, problem: str, code: int = _PROTOCOL_ERROR) -> None:
        """`code`: of the error, for the client."""
        super().__init__(problem)
        self.code = code


class _UnknownCall(Call):
    def on_message(self, content: bytes) -> None:
        self.on_end()

    def on_end(self) -> None:
        self.finish(UNIMPLEMENTED, "there is no such method")
