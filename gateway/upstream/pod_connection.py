"""HTTP/1.1 to pods: pooled keep-alive connections on httptools, bodies streamed both ways.

A general client costs 200 us (aiohttp) to 2,500 us (httpx) a request, this one about 40; it does
what requests to a pod need, no more: no redirects, cookies, proxies or compression.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import httptools

from common.pod_secret import PodSecret
from common.tls import PartTls
from gateway.errors import GatewayError, UpstreamLost
from gateway.request_run import waker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.http.headers import Headers
    from gateway.request_run import RequestRun

CONNECT_TIMEOUT_S: Final = 1.0
MAX_IDLE_S: Final = 30.0
"""A pod closes idle connections after 65 s; the gateway closes them well before."""
_HIGH_WATER: Final = 1 << 20
_MAX_JOINED: Final = 16 << 10
"""Up to this size a copy is cheaper than a second buffer to write."""
_MAX_IDLE: Final = 1024


class PodUnreachable(GatewayError):
    """No connection to the pod: it received nothing of the request."""


class PodConnectionLost(UpstreamLost):
    """The connection broke before the response was complete: the pod may have begun to execute."""

    def __init__(self, message: str, *, was_reused: bool) -> None:
        super().__init__(message)
        self.was_reused = was_reused


class PodConnection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.is_closed = False
        self.is_request_cut = False
        """The request was not sent completely, so the connection cannot be reused."""
        self.used_total = 0
        self.idle_since_s = 0.0
        self._writable: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.is_complete = False
        self.has_head = False
        self._keeps_alive = False
        self._chunks: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._wakeup: RequestRun | asyncio.Future[None] | None = None
        self.on_data: Callable[[], None] | None = None
        """Called when data arrives, for a caller that records the time."""

    # The exchange

    def start_exchange(self) -> None:
        if self.used_total:
            self._reset()
        self.used_total += 1

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.is_closed:
            self.transport.write(data)

    def write_all(self, head: bytes, chunks: Sequence[bytes]) -> None:
        """Send the head of a request and the received chunks of its body, in one system call."""
        if len(chunks) == 1 and len(chunks[0]) < _MAX_JOINED:
            self.write(head + chunks[0])
        elif self.transport is not None and not self.is_closed:
            self.transport.writelines([head, *chunks])

    async def drain(self) -> None:
        """Wait until the write buffer has room or the pod has responded."""
        if self._writable is not None and not self.is_closed:
            await self._writable

    async def wait_head(self) -> None:
        """Wait for status and headers. Raises PodConnectionLost."""
        while not self.has_head:
            if self.is_closed:
                raise PodConnectionLost(
                    "the pod closed the connection before its response",
                    was_reused=self.used_total > 1,
                )
            await self._wait_data()

    @property
    def has_body(self) -> bool:
        """True if a chunk of the body, or its end, was received and not taken."""
        return bool(self._chunks) or self.is_complete

    def take_body(self) -> list[bytes]:
        """Chunks of the response's body received since the last call."""
        chunks = list(self._chunks)
        self._chunks.clear()
        if self._buffered_bytes > _HIGH_WATER and self.transport is not None and not self.is_closed:
            self.transport.resume_reading()
        self._buffered_bytes = 0
        return chunks

    async def wait_body(self) -> None:
        """Wait until `has_body`. Raises PodConnectionLost if the rest will not come."""
        while not self._chunks and not self.is_complete:
            if self.is_closed:
                raise PodConnectionLost("the pod closed the connection during its response",
                                        was_reused=False)  # fmt: skip
            await self._wait_data()

    async def _wait_data(self) -> None:
        self._wakeup = wakeup = waker(self._loop)
        try:
            await wakeup
        finally:
            self._wakeup = None

    def _wake_reader(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
        if self.on_data is not None:
            self.on_data()

    def close(self) -> None:
        """Abort the connection; the pod sees its client disconnect."""
        self.is_closed = True
        if self.transport is not None:
            self.transport.abort()

    @property
    def can_be_reused(self) -> bool:
        return self._keeps_alive and not self.is_closed and not self.is_request_cut

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse, and wake the reader once per segment: a small response costs one wake-up."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.close()
        self._wake_reader()

    def eof_received(self) -> bool:
        self.is_closed = True
        if self.has_head and not self.is_complete and self._ends_with_connection():
            self.is_complete = True
        self._wake_reader()
        return False

    def _ends_with_connection(self) -> bool:
        names = {name for name, _ in self.headers}
        return b"content-length" not in names and b"transfer-encoding" not in names

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._wake_reader()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # httptools callbacks

    def on_message_begin(self) -> None:
        """Fail on a second response, which belongs to no request."""
        if self.is_complete:
            raise UpstreamLost("the pod sent more than one response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers are left out."""
        if not self.has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Accept the head, or skip that of an interim response (1xx)."""
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self.has_head = True
            self.resume_writing()
        else:
            self.headers = []

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered_bytes += len(body)
        if self._buffered_bytes > _HIGH_WATER and self.transport is not None:
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.has_head:
            self.is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()


class PodConnectionPool:
    """Idle connections by pod address, and what requests to pods need: the secret, and TLS."""

    def __init__(
        self,
        secret: PodSecret | None = None,
        tls: PartTls | None = None,
        *,
        max_idle_s: float = MAX_IDLE_S,
    ) -> None:
        """`max_idle_s`: well below the time after which the servers close idle connections."""
        self._max_idle_s = max_idle_s
        self.secret = secret or PodSecret()
        self.tls = tls or PartTls()
        self._idle: dict[str, deque[PodConnection]] = {}
        self._loop = asyncio.get_running_loop()

    def take_idle(self, address: str) -> PodConnection | None:
        """An open connection to the pod, if there is one; the one used last."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            oldest_s = self._loop.time() - self._max_idle_s
            if not connection.is_closed and connection.idle_since_s > oldest_s:
                connection.start_exchange()
                return connection
            connection.close()
        return None

    async def connect(self, address: str) -> PodConnection:
        """A new connection to the pod. Raises PodUnreachable."""
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await self._loop.create_connection(
                    PodConnection, host.strip("[]"), int(port), **self.tls.connect_options
                )
        except (OSError, TimeoutError) as error:
            raise PodUnreachable(f"no connection to the pod at {address}: {error}") from error
        connection.start_exchange()
        return connection

    def release(self, address: str, connection: PodConnection) -> None:
        """Keep a connection for another exchange, or close it if it cannot be reused."""
        idle = self._idle.setdefault(address, deque())
        if connection.can_be_reused and len(idle) < _MAX_IDLE:
            connection.idle_since_s = self._loop.time()
            idle.append(connection)
        else:
            connection.close()

    async def close_idle_periodically(self) -> None:
        """Until cancelled; also drops addresses of pods that are gone."""
        while True:
            await asyncio.sleep(self._max_idle_s / 2)
            self.close_idle_since(self._loop.time() - self._max_idle_s)

    def close_idle_since(self, oldest_s: float) -> None:
        """Close connections last used at or before this loop time."""
        for address, idle in list(self._idle.items()):
            while idle and (idle[0].is_closed or idle[0].idle_since_s <= oldest_s):
                idle.popleft().close()
            if not idle:
                del self._idle[address]

    def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()
