"""Unpacks request bodies that clients send compressed (RFC 9110, section 8.4), within a bound."""

import zlib
from typing import Final

ACCEPTED: Final = "gzip, deflate"
"""For a response's `accept-encoding` (RFC 9110, section 12.5.3)."""
CODINGS: Final = frozenset(("gzip", "x-gzip", "deflate"))
_PIECE_BYTES: Final = 16 * 1024
"""Taken at once: zlib copies what of a piece follows a member, which may have 20 bytes."""
_MAX_MEMBERS: Final = 10_000
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class UnpackedTooLarge(ValueError):
    """The body has more bytes than are allowed."""


def coding_of(header: str | None) -> str:
    """The coding that a `content-encoding` header names, in lower case; empty: none."""
    coding = (header or "").strip().lower()
    return "" if coding == "identity" else coding


def unpack(body: bytes, coding: str, max_bytes: int, *, is_prefix: bool = False) -> bytes:
    """Unpack a body of one of `CODINGS`; `is_prefix`: only its beginning is given. Blocks.

    Raises ValueError for bytes that are not of this coding, UnpackedTooLarge over `max_bytes`.
    """
    wbits = _GZIP_OR_ZLIB
    has_head = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    if coding == "deflate" and not has_head:
        wbits = -zlib.MAX_WBITS  # some clients send no zlib header and checksum
    parts: list[bytes] = []
    total = at = members = 0
    while at < len(body):
        members += 1
        if members > _MAX_MEMBERS:
            raise UnpackedTooLarge(f"has more than {_MAX_MEMBERS} parts")
        unpacker = zlib.decompressobj(wbits)
        while at < len(body) and not unpacker.eof:
            piece = body[at : at + _PIECE_BYTES]
            try:
                part = unpacker.decompress(piece, max_bytes - total + 1)
            except zlib.error as error:
                raise ValueError(f"is not {coding}: {error}") from None
            at += len(piece) - len(unpacker.unused_data)  # gzip may have several members
            parts.append(part)
            total += len(part)
            if total > max_bytes:
                if is_prefix:
                    return b"".join(parts)
                raise UnpackedTooLarge(f"has more than {max_bytes} bytes when it is unpacked")
        if not (unpacker.eof or is_prefix):
            raise ValueError(f"is not {coding}: it ends early")
    return b"".join(parts)
