"""HTTP/2's frames and header blocks (RFC 9113, RFC 7541): their bytes, and what they may hold."""

import re
from typing import Final

from hpack.exceptions import HPACKError

from common.http_headers import HOP_BY_HOP, Headers

(
    DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE,
    CONTINUATION,
) = range(10)  # fmt: skip
_SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
"""Bytes of the content of kinds that have but one size."""
_OF_CONNECTIONS: Final = frozenset((SETTINGS, PING, GOAWAY))
"""Kinds of no stream; frames of the others, but window updates, have one."""
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
_HAS_PRIORITY: Final = 0x20
FRAME_HEAD_BYTES: Final = 9
FRAME_BYTES: Final = 16_384
"""Of a frame's content at most, in both directions: the protocol's default."""
_PREFIX: Final = 127
"""Lengths from this on take several bytes."""
_REQUIRED: Final = frozenset((b":method", b":scheme", b":path"))
_PSEUDO: Final = _REQUIRED | {b":authority"}
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE: Final = re.compile(rb"[^\0\r\n]*")
_TE: Final = re.compile(b"trailers")
_VISIBLE: Final = re.compile(rb"[\x21-\x7e]*")
_FORBIDDEN: Final = HOP_BY_HOP - {b"te", b"trailer", b"proxy-authenticate", b"proxy-authorization"}


def frame_problem(kind: int, flags: int, number: int, size: int) -> str:
    """Why a client sends no such frame (section 6); empty: it may, or the kind is unknown."""
    if _SIZES.get(kind, size) != size or (kind == SETTINGS and flags & ACK and size):
        return f"a frame of kind {kind} has {size} bytes"
    if kind in (PUSH_PROMISE, CONTINUATION):
        return f"a frame of kind {kind} is none of a client's, or not after its headers"
    if kind < WINDOW_UPDATE and (kind in _OF_CONNECTIONS) is not (number == 0):
        return f"a frame of kind {kind} has stream {number}"
    return ""


def frame(kind: int, flags: int, number: int, content: bytes) -> bytes:
    """A frame of stream `number`; 0: of the connection."""
    return b"%b%c%c%b%b" % (
        len(content).to_bytes(3, "big"), kind, flags, number.to_bytes(4, "big"), content,
    )  # fmt: skip


def header_fragment(frame: bytes) -> bytes:
    """The part of a header block in a frame (section 6.2). Raises HPACKError."""
    content = frame[FRAME_HEAD_BYTES:]
    if frame[3] == CONTINUATION:
        return content
    padding = 0
    if frame[4] & PADDED:
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


def header_frames(flags: int, number: int, block: bytes) -> bytes:
    """A header block, in as many frames as it needs."""
    parts = [block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES)]
    if len(parts) == 1:
        return frame(HEADERS, flags | END_HEADERS, number, block)
    *more, last = parts[1:]
    return b"".join((
        frame(HEADERS, flags, number, parts[0]),
        *(frame(CONTINUATION, 0, number, part) for part in more),
        frame(CONTINUATION, END_HEADERS, number, last),
    ))  # fmt: skip


def may_be_sent(name: bytes) -> bool:
    """Whether HTTP/2 has such a header (section 8.2)."""
    return name not in _FORBIDDEN and _NAME.fullmatch(name) is not None


def is_request(headers: Headers) -> bool:
    """Whether well-formed headers begin a request; trailers do not."""
    return {name for name, value in headers if value} >= _REQUIRED


def is_well_formed(headers: Headers) -> bool:
    """Whether a request may have these headers (sections 8.2 and 8.3).

    Pods get them by HTTP/1.1, where a line's end in a name or value would begin another header.
    """
    pseudo: set[bytes] = set()
    count = 0
    for name, value in headers:
        if name in _PSEUDO:
            pseudo.add(name)
            count += 1
            if not _VISIBLE.fullmatch(value):
                return False
        elif not (may_be_sent(name) and (_TE if name == b"te" else _VALUE).fullmatch(value)):
            return False
    return len(pseudo) == count and all(name in _PSEUDO for name, _ in headers[:count])
