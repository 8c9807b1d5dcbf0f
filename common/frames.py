"""Messages between a process and its child over a socket: lengths, a head in JSON, then a body.

Nothing is pickled here: the other end may execute foreign code.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any, Final

try:
    from orjson import dumps, loads
except ImportError:  # in the environment of an engine
    import json

    def dumps(head: object) -> bytes:  # type: ignore[misc]  # of fewer arguments
        return json.dumps(head).encode()

    loads = json.loads  # type: ignore[assignment]  # of more arguments

Message = tuple[dict[str, Any], bytes]
"""Head and body."""


LENGTHS: Final = struct.Struct(">IQ")
MAX_BYTES: Final = 64 << 20


class BadFrame(ValueError):
    """Bytes that are no message, or too many; the other end is broken or hostile."""


def frame(head: object, body: bytes = b"", *, max_bytes: int = MAX_BYTES) -> bytes:
    """One message; `head` is as a JSON object. Raises BadFrame."""
    try:
        content = dumps(head)
    except TypeError as error:
        raise BadFrame(str(error)) from error
    if len(content) > max_bytes:
        raise BadFrame(f"has {len(content)} bytes as JSON, {max_bytes} are allowed")
    return LENGTHS.pack(len(content), len(body)) + content + body


async def read_frame(reader: asyncio.StreamReader, *, max_bytes: int = MAX_BYTES) -> Message | None:
    """The next message; None at the end of the connection. Raises BadFrame."""
    try:
        head_bytes, body_bytes = _lengths(await reader.readexactly(LENGTHS.size), max_bytes)
        head = _head(await reader.readexactly(head_bytes))
        return head, await reader.readexactly(body_bytes) if body_bytes else b""
    except (EOFError, OSError):
        return None


def received(connection: socket.socket) -> Iterator[Message]:
    """Messages of a trusted process, until it closes its end. Blocks. Raises BadFrame, OSError."""
    while len(lengths := _exactly(connection, LENGTHS.size)) == LENGTHS.size:
        head_bytes, body_bytes = _lengths(lengths, 1 << 62)
        yield _head(_exactly(connection, head_bytes)), _exactly(connection, body_bytes)


def parent_socket() -> socket.socket:
    """In a child: its end of the connection, which is its standard input until now."""
    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return connection


def _exactly(connection: socket.socket, size: int) -> bytes:
    """No bytes more, so that `select` sees what is left; fewer at the end of the connection."""
    content = bytearray(size)
    got, view = 0, memoryview(content)
    while got < size and (count := connection.recv_into(view[got:])):
        got += count
    return bytes(view[:got])


def _lengths(data: bytes, max_bytes: int) -> tuple[int, int]:
    head_bytes, body_bytes = LENGTHS.unpack(data)
    if head_bytes + body_bytes > max_bytes:
        raise BadFrame(f"a message of {head_bytes + body_bytes} bytes, {max_bytes} are allowed")
    return head_bytes, body_bytes


def _head(content: bytes) -> dict[str, Any]:
    try:
        head = loads(content)
    except ValueError as error:
        raise BadFrame(f"a message without JSON: {error}") from error
    if not isinstance(head, dict):
        raise BadFrame(f"a message is an object, not {type(head).__name__}")
    return head
