"""Frames between a scheduler and its runners: a length of four bytes and a JSON document.

Nothing is pickled: a runner executes its users' code, and its messages are data to its scheduler.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    import asyncio

LENGTH: Final = struct.Struct(">I")
MAX_FRAME_BYTES: Final = 64 * 1024**2


class BadFrameError(ValueError):
    """Bytes that are no frame; the other side is broken or hostile."""


def packed(message: dict[str, Any]) -> bytes:
    """One frame. Raises BadFrameError for a message that is too large or no JSON."""
    try:
        content = orjson.dumps(message)
    except TypeError as error:
        raise BadFrameError(str(error)) from error
    if len(content) > MAX_FRAME_BYTES:
        raise BadFrameError(f"has {len(content)} bytes as JSON, {MAX_FRAME_BYTES} are allowed")
    return LENGTH.pack(len(content)) + content


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message; None at the end of the connection. Raises BadFrameError."""
    try:
        head = await reader.readexactly(LENGTH.size)
        size = LENGTH.unpack(head)[0]
        if size > MAX_FRAME_BYTES:
            raise BadFrameError(f"a frame of {size} bytes, {MAX_FRAME_BYTES} are allowed")
        content = await reader.readexactly(size)
    except (EOFError, OSError):
        return None
    try:
        message = orjson.loads(content)
    except ValueError as error:
        raise BadFrameError(f"a frame without JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadFrameError(f"a frame is an object, not {type(message).__name__}")
    return message
