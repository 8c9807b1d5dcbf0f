"""Tells the gRPC server what a call's `:authority` is: grpcio keeps it to itself.

Clients connect here; each connection is passed on to the server's Unix socket as it is, but for a
further header at the end of every request's headers. Bodies are neither read nor kept.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hpack.exceptions import HPACKError

from common.process import socket_folder

logger = logging.getLogger(__name__)

AUTHORITY_HEADER: Final = b"x-pilotlight-authority"
_PREFACE_BYTES: Final = 24
FRAME_HEAD_BYTES: Final = 9
_HEADERS: Final = 1
_CONTINUATION: Final = 9
_END_HEADERS: Final = 0x4
_PADDED: Final = 0x8
_HAS_PRIORITY: Final = 0x20
MAX_BLOCK_BYTES: Final = 128 * 1024
"""Of one request's headers, in all frames."""
_MAX_AUTHORITY_BYTES: Final = 255
AUTHORITY: Final = b":authority"
_MAX_TABLE_BYTES: Final = 65_536
"""The server announces less; a larger table is an error of the client's."""
_MAX_HEADER_BYTES: Final = 1024 * 1024
"""Of a block's headers, unpacked."""
_READ_BYTES: Final = 256 * 1024


def header_decoder() -> Decoder:
    """Of HTTP/2's compressed headers (HPACK, RFC 7541), for all blocks of one connection."""
    decoder = Decoder(max_header_list_size=_MAX_HEADER_BYTES)
    decoder.max_allowed_table_size = _MAX_TABLE_BYTES
    return decoder


def authority_of(decoder: Decoder, block: bytes) -> bytes:
    """The `:authority` of a block; empty: it has none. Raises HPACKError."""
    headers = decoder.decode(block, raw=True)
    return next((bytes(value) for name, value in headers if name == AUTHORITY), b"")


def literal(name: bytes, value: bytes) -> bytes:
    """A header of a block, of which no table keeps anything."""
    block: bytes = Encoder().encode([NeverIndexedHeaderTuple(name, value)], huffman=False)
    return block


class RequestFrames:
    """The bytes of one client's connection, with the header added."""

    def __init__(self) -> None:
        self._decoder = header_decoder()
        self._passed = _PREFACE_BYTES
        """Bytes that are no frame of headers."""
        self._begun = b""
        """A frame's head, or a frame of headers, that is not complete."""
        self._block = b""

    def feed(self, data: bytes) -> bytes:
        """What the server gets for these bytes. Raises HPACKError."""
        if self._begun:
            data, self._begun = self._begun + data, b""
        parts: list[bytes] = []
        start = at = 0
        end = len(data)
        while at < end:
            if self._passed:
                step = min(self._passed, end - at)
                self._passed -= step
                at += step
                continue
            size = FRAME_HEAD_BYTES
            if end - at >= size:
                size += int.from_bytes(data[at : at + 3], "big")
                if data[at + 3] not in (_HEADERS, _CONTINUATION):
                    self._passed = size
                    continue
                if size > MAX_BLOCK_BYTES:
                    raise HPACKError(f"a frame of headers has {size} bytes")
            if end - at < size:
                self._begun = data[at:]
                parts.append(data[start:at])
                return b"".join(parts)
            frame = data[at : at + size]
            at += size
            if added := self._added(frame):
                parts += (data[start : at - size], added)
                start = at
        parts.append(data[start:])
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def _added(self, frame: bytes) -> bytes:
        """The last frame of a request's headers, and one with the header; empty: not the last."""
        self._block += header_fragment(frame)
        if len(self._block) > MAX_BLOCK_BYTES:
            raise HPACKError(f"a request's headers have {len(self._block)} bytes or more")
        if not frame[4] & _END_HEADERS:
            return b""
        block, self._block = self._block, b""
        header = literal(
            AUTHORITY_HEADER, authority_of(self._decoder, block)[:_MAX_AUTHORITY_BYTES]
        )
        head = len(header).to_bytes(3, "big") + bytes((_CONTINUATION, _END_HEADERS)) + frame[5:9]
        return b"".join((frame[:4], bytes((frame[4] & ~_END_HEADERS,)), frame[5:], head, header))


def header_fragment(frame: bytes) -> bytes:
    """The part of a header block in a frame (RFC 9113, section 6.2)."""
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


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
) -> None:
    """Until either side ends, which ends the other. Raises HPACKError."""
    try:
        while data := await reader.read(_READ_BYTES):
            writer.write(change(data))
            await writer.drain()
    finally:
        writer.close()


async def _relay(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass a client's connection on to the server at `path` until it ends."""
    try:
        server_reader, server_writer = await asyncio.open_unix_connection(path)
    except OSError:
        logger.warning("the gRPC server takes no connection", exc_info=True)
        writer.transport.abort()
        return
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, server_writer, RequestFrames().feed))
            group.create_task(_copy(server_reader, writer, bytes))
    except* (OSError, HPACKError) as errors:
        logger.debug("a connection broke off", extra={"error": str(errors.exceptions[0])})
        writer.transport.abort()


@asynccontextmanager
async def relaying(host: str, port: int) -> AsyncIterator[str]:
    """Listen for clients; the Unix socket at which the server is to listen.

    Raises OSError if the port is taken.
    """
    with socket_folder() as folder:
        path = str(folder / "server")
        try:
            listener = await asyncio.start_server(partial(_relay, path), host, port)
        except OSError as error:
            raise OSError(f"gRPC port {port} of {host}: {error}") from error
        try:
            yield path
        finally:
            listener.close()
