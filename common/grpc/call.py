"""A gRPC call at its server: what its service's class does with messages, and how it answers."""

from collections import deque
from typing import Final, Protocol
from urllib.parse import quote

from common.content_coding import unpack
from common.grpc.frames import (
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADERS,
    WINDOW_UPDATE,
    frame,
    header_frames,
    literal,
)
from common.http_headers import Headers

CALL_WINDOW: Final = 1 << 18
"""Bytes that a call's client may send before they are taken."""
_SMALL_BYTES: Final = 64 * 1024
"""Of a packed message that is unpacked on the event loop."""
_BEGIN: Final = b"\x88\x0f\x10\x10application/grpc"
"""HPACK: status 200, and a content-type that no table keeps."""
_UNQUOTED: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 0, 3, 5, 8, 12
INTERNAL, UNAVAILABLE = 13, 14
"""Of gRPC's status codes."""


class Connection(Protocol):
    def write(self, data: bytes) -> None: ...

    def send_unsent(self, call: "Call") -> None:
        """Send what the client has window for, and the end of a call that is over."""


class Call:
    """One call; its service's class says what its messages do."""

    window = 0
    """Bytes that its client accepts beside its settings' window; set by the connection, as are the
    next ones."""
    uncredited = counted_bytes = 0
    """Bytes taken while it was paused."""
    _is_paused = has_begun = is_over = has_ended = False
    """`has_begun`: its answer; `is_over`: nothing is sent any more; `has_ended`: by the client."""
    trailers = b""
    progress = (0, 0)
    """`begun_bytes` and bytes unsent, when they were checked last."""

    def __init__(self, connection: Connection, number: int, headers: Headers) -> None:
        """`headers`: also those that begin with a colon."""
        self.connection = connection
        self.number = number
        self.headers = headers
        self.received = bytearray()
        self.unsent: deque[bytes] = deque()
        """Frames' contents for which its client has no window yet."""

    @property
    def begun_bytes(self) -> int:
        """Kept until its client sends more, or the end."""
        return 0 if self.has_ended else len(self.received)

    def on_message(self, content: bytes) -> None:
        raise NotImplementedError

    def on_packed(self, content: bytes, coding: str, max_bytes: int) -> None:
        """A packed message, of `max_bytes` at most when it is unpacked. Raises ValueError."""
        self.on_message(unpack(content, coding, min(max_bytes, _SMALL_BYTES)))

    def on_end(self) -> None:
        """The client sends no more, but may read."""
        raise NotImplementedError

    def on_over(self) -> None:
        """The call has left its connection: it was finished, or its client is gone."""

    def send(self, content: bytes) -> None:
        if self.is_over:
            return
        if not self.has_begun:
            self.has_begun = True
            self.connection.write(frame(HEADERS, END_HEADERS, self.number, _BEGIN))
        content = b"\0%b%b" % (len(content).to_bytes(4, "big"), content)
        for at in range(0, len(content), FRAME_BYTES):
            self.unsent.append(content[at : at + FRAME_BYTES])
        self.connection.send_unsent(self)

    def finish(self, status: int = OK, detail: str = "", metadata: Headers | None = None) -> None:
        """End the call, once what was sent has gone."""
        if self.is_over:
            return
        self.is_over = True
        block = b"" if self.has_begun else _BEGIN
        block += literal(b"grpc-status", b"%d" % status)
        if detail:
            block += literal(b"grpc-message", quote(detail, safe=_UNQUOTED).encode())
        for name, value in metadata or ():
            block += literal(name, value)
        self.trailers = header_frames(END_STREAM, self.number, block)
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
            self.connection.write(frame(WINDOW_UPDATE, 0, self.number, size.to_bytes(4, "big")))
