"""Raw bytes of tensors that other pods keep, over HTTP/1.1: received where they are used.

The event loop reads from the socket, or decrypts, into the tensors' own memory. One request gets
all tensors of a step that a pod keeps; connections stay open between requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

import httptools
import numpy as np

from runtime.errors import InputLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.pod_secret import PodSecret
    from common.tls import PartTls

CONNECT_TIMEOUT_S: Final = 2.0
STALL_TIMEOUT_S: Final = 30.0
"""Without a byte of the response."""
MAX_HEAD_BYTES: Final = 16 * 1024
MAX_IDLE: Final = 32
"""Connections kept for each address."""
MAX_IDLE_S: Final = 30.0
"""Pods close idle connections after 65 s."""
_HEAD_END: Final = b"\r\n\r\n"


class TransferFailed(Exception):
    """The connection or its response cannot be used."""


class _Connection(asyncio.BufferedProtocol):
    """One exchange at a time. The event loop fills the buffers that `get_buffer` gives it."""

    def __init__(self) -> None:
        self.idle_since_s = 0.0
        self.used_total = 0
        self.received_bytes = 0
        """Of the current response."""
        self.can_stay = False
        """Whether the response was complete and the server keeps the connection."""
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[int] | None = None
        self._head = memoryview(bytearray(MAX_HEAD_BYTES))
        self._head_bytes = 0
        self._content_length: int | None = None
        self._parts: deque[memoryview] = deque()
        self._is_body = self._keeps_alive = False

    async def exchange(self, request: bytes, parts: Sequence[memoryview]) -> int:
        """Send a request, and fill `parts` from a response with status 200; returns the status.

        Raises TransferFailed. Cancelling it closes the connection.
        """
        self.used_total += 1
        self.received_bytes = self._head_bytes = 0
        if self._transport is None or self._transport.is_closing():
            raise TransferFailed("the connection is closed")
        self._is_body = self._keeps_alive = self.can_stay = False
        self._content_length = None
        self._parts = deque(part for part in parts if len(part))
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._result(self._done)
        finally:
            self._parts.clear()
            self._done.cancel()
            if not self.can_stay:
                self.close()

    async def _result(self, done: asyncio.Future[int]) -> int:
        before = -1
        while before < self.received_bytes:
            before = self.received_bytes
            await asyncio.wait((done,), timeout=STALL_TIMEOUT_S)
            if done.done():
                return done.result()
        raise TransferFailed(
            f"nothing came for {STALL_TIMEOUT_S:g} s after {self.received_bytes} bytes"
        )

    def close(self) -> None:
        self.can_stay = False
        if self._transport is not None:
            self._transport.abort()

    # Of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base

    def get_buffer(self, sizehint: int) -> memoryview:
        """The rest of the current tensor, or room for a head."""
        if self._is_body and self._parts:
            return self._parts[0]
        return self._head[self._head_bytes :] or self._head

    def buffer_updated(self, nbytes: int) -> None:
        if self._done is None or self._done.done():
            self.close()  # nothing was asked
            return
        self.received_bytes += nbytes
        try:
            if self._is_body:
                self._advance(nbytes)
            else:
                self._head_bytes += nbytes
                self._read_head()
        except (TransferFailed, httptools.HttpParserError) as error:
            self._fail(str(error))
            self.close()

    def eof_received(self) -> None:
        self._fail("the pod ended the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self.can_stay = False
        self._fail(f"the connection was lost: {exc or 'closed'}")

    def _fail(self, reason: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(TransferFailed(reason))

    # The response

    def _read_head(self) -> None:
        head = bytes(self._head[: self._head_bytes])
        end = head.find(_HEAD_END)
        if end < 0:
            if self._head_bytes == MAX_HEAD_BYTES:
                raise TransferFailed(f"a response's head must have at most {MAX_HEAD_BYTES} bytes")
            return
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(head[: end + len(_HEAD_END)])
        status = parser.get_status_code()
        if status != 200:
            self._finish(status)
            return
        wanted = sum(map(len, self._parts))
        if self._content_length != wanted:
            raise TransferFailed(f"content-length must be {wanted}, was {self._content_length}")
        body = memoryview(head)[end + len(_HEAD_END) :]
        if len(body) > wanted:
            raise TransferFailed(f"{len(body) - wanted} bytes came after the response")
        self._is_body, self._keeps_alive = True, parser.should_keep_alive()
        self._take(body)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools, which checks that a length is a number."""
        if name.lower() == b"content-length":
            self._content_length = int(value)

    def _take(self, body: memoryview) -> None:
        """Copy what came with the head."""
        while len(body):
            count = min(len(body), len(self._parts[0]))
            self._parts[0][:count] = body[:count]
            body = body[count:]
            self._advance(count)

    def _advance(self, nbytes: int) -> None:
        part = self._parts.popleft()
        if nbytes < len(part):
            self._parts.appendleft(part[nbytes:])
        if not self._parts:
            self._finish(200)

    def _finish(self, status: int) -> None:
        self.can_stay = self._keeps_alive
        if self._done is not None and not self._done.done():
            self._done.set_result(status)


class TensorClient:
    """Connections to any number of pods. Belongs to the event loop."""

    def __init__(self, secret: PodSecret, tls: PartTls) -> None:
        self._secret = secret
        self._tls = tls
        self._idle: dict[str, deque[_Connection]] = {}

    async def fetch(self, address: str, path: str, sizes: Sequence[int]) -> list[memoryview]:
        """The tensors of a path in their order, of exactly these sizes in bytes.

        Raises InputLost.
        """
        lines = f"GET {path} HTTP/1.1\r\nhost: {address}".encode("latin-1")
        request = lines + self._secret.header_line + _HEAD_END
        try:
            parts = [np.empty(size, np.uint8).data for size in sizes]
            status = await self._exchange(address, request, parts)
        except (OSError, TransferFailed, MemoryError) as error:
            raise InputLost(
                f"pod {address}, which keeps an input, cannot send it: {error!r}"
            ) from error
        if status != 200:
            raise InputLost(f"pod {address} does not keep the tensor (any more): status {status}")
        return parts

    async def _exchange(self, address: str, request: bytes, parts: Sequence[memoryview]) -> int:
        while True:
            connection = self._take_idle(address) or await self._connect(address)
            try:
                status = await connection.exchange(request, parts)
            except TransferFailed:
                if connection.used_total > 1 and not connection.received_bytes:
                    continue  # the pod closed it meanwhile
                raise
            if connection.can_stay:
                self._put_idle(address, connection)
            return status

    def _take_idle(self, address: str) -> _Connection | None:
        idle = self._idle.get(address)
        now_s = asyncio.get_running_loop().time()
        while idle:
            connection = idle.pop()
            if connection.can_stay and now_s - connection.idle_since_s < MAX_IDLE_S:
                return connection
            connection.close()
        return None

    def _put_idle(self, address: str, connection: _Connection) -> None:
        connection.idle_since_s = asyncio.get_running_loop().time()
        idle = self._idle.setdefault(address, deque())
        idle.append(connection)
        while len(idle) > MAX_IDLE:
            idle.popleft().close()

    async def _connect(self, address: str) -> _Connection:
        """Raises OSError, TransferFailed."""
        self._drop_old()
        parts = urlsplit(f"//{address}")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection, parts.hostname or "", parts.port or 80, **self._tls.connect_options
                )
        except TimeoutError:
            raise TransferFailed(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None
        return connection

    def _drop_old(self) -> None:
        """Close the connections of pods that are not asked any more."""
        now_s = asyncio.get_running_loop().time()
        for address, idle in list(self._idle.items()):
            while idle and now_s - idle[0].idle_since_s >= MAX_IDLE_S:
                idle.popleft().close()
            if not idle:
                del self._idle[address]

    def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()
