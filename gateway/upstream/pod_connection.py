"""HTTP/1.1 to pods: pooled keep-alive connections on httptools, bodies streamed both ways.

A general client costs 200 us (aiohttp) to 2,500 us (httpx) a request, this one about 40; it does
what talking to a pod needs, no more: no redirects, cookies, proxies or compression.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import httptools

from gateway.errors import GatewayError, UpstreamLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

CONNECT_TIMEOUT_S: Final = 1.0
IDLE_S: Final = 30.0
"""A pod closes idle connections after 65 s; ours are dropped well before that."""
_HIGH_WATER: Final = 1 << 20
_JOIN_BELOW: Final = 16 << 10
"""Below this a copy is cheaper than a second buffer to write."""
_MOST_IDLE: Final = 1024

Headers = list[tuple[bytes, bytes]]


class PodUnreachable(GatewayError):
    """No connection to the pod: it has seen nothing of the request."""


class PodConnectionLost(UpstreamLost):
    """The connection broke before the answer was whole: the pod may or may not have begun."""

    def __init__(self, message: str, *, was_reused: bool) -> None:
        super().__init__(message)
        self.was_reused = was_reused


class PodConnection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.is_closed = False
        self.is_spent = False
        """The request was not sent to its end: nothing else can follow it."""
        self.used_total = 0
        self.idle_since_s = 0.0
        self._writable: asyncio.Future[None] | None = None
        self._start()

    def _start(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: Headers = []
        self.is_complete = False
        self._has_head = False
        self._keeps_alive = False
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._wake: asyncio.Future[None] | None = None
        self.on_news: Callable[[], None] | None = None
        """Called when anything comes, for whoever waits for something else meanwhile."""

    # The exchange

    def begin(self) -> None:
        """Get ready for the next exchange."""
        if self.used_total:
            self._start()
        self.used_total += 1

    def write(self, data: bytes) -> None:
        """Send bytes of the request."""
        if self.transport is not None and not self.is_closed:
            self.transport.write(data)

    @property
    def has_head(self) -> bool:
        """Whether the pod has begun to answer."""
        return self._has_head

    def write_all(self, head: bytes, pieces: Sequence[bytes]) -> None:
        """Send the head of a request and what is here of its body, in one system call."""
        if len(pieces) == 1 and len(pieces[0]) < _JOIN_BELOW:
            self.write(head + pieces[0])
        elif self.transport is not None and not self.is_closed:
            self.transport.writelines([head, *pieces])

    async def drain(self) -> None:
        """Return when more can be sent without piling up, or when the pod answers already."""
        if self._writable is not None and not self.is_closed:
            await self._writable

    async def head(self) -> None:
        """Wait for status and headers. Raises PodConnectionLost."""
        while not self._has_head:
            if self.is_closed:
                raise PodConnectionLost(
                    "the pod closed the connection before it answered",
                    was_reused=self.used_total > 1,
                )
            await self._news()

    def body_so_far(self) -> list[bytes]:
        """Chunks of the answer's body that are here."""
        chunks = list(self._chunks)
        self._chunks.clear()
        if self._buffered > _HIGH_WATER and self.transport is not None and not self.is_closed:
            self.transport.resume_reading()
        self._buffered = 0
        return chunks

    @property
    def has_news(self) -> bool:
        """Whether more of the body, or its end, is here."""
        return bool(self._chunks) or self.is_complete

    async def more_body(self) -> None:
        """Wait for more of the body. Raises PodConnectionLost if it will not come."""
        while not self._chunks and not self.is_complete:
            if self.is_closed:
                raise PodConnectionLost("the pod closed the connection inside its answer",
                                        was_reused=False)  # fmt: skip
            await self._news()

    async def _news(self) -> None:
        self._wake = self._loop.create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _tell(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        if self.on_news is not None:
            self.on_news()

    def close(self) -> None:
        """Break the connection off; the pod sees its client leave."""
        self.is_closed = True
        if self.transport is not None:
            self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse; wake whoever waits once per segment, so that a small answer is one wake-up."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.close()
        self._tell()

    def eof_received(self) -> bool:
        """The pod will send no more."""
        self.is_closed = True
        if self._has_head and not self.is_complete and self._ends_with_connection():
            self.is_complete = True
        self._tell()
        return False

    def _ends_with_connection(self) -> bool:
        names = {name for name, _ in self.headers}
        return b"content-length" not in names and b"transfer-encoding" not in names

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake whoever waits: there is nothing more to come."""
        self.is_closed = True
        self._tell()
        self.resume_writing()

    def pause_writing(self) -> None:
        """The pod takes bytes slower than they come."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """There is room again."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # httptools callbacks

    def on_message_begin(self) -> None:
        """An answer begins. A second one was not asked for, and must not reach anybody."""
        if self.is_complete:
            raise UpstreamLost("the pod sent more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of the answer; trailers are left out."""
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is here; an interim answer (1xx) is passed over."""
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self._has_head = True
            self.resume_writing()
        else:
            self.headers = []

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > _HIGH_WATER and self.transport is not None:
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._has_head:
            self.is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()

    @property
    def can_be_reused(self) -> bool:
        """Whether another exchange may follow on this connection."""
        return self._keeps_alive and not self.is_closed and not self.is_spent


class PodPool:
    """Idle connections per pod address."""

    def __init__(self) -> None:
        self._idle: dict[str, deque[PodConnection]] = {}
        self._loop = asyncio.get_running_loop()

    def idle(self, address: str) -> PodConnection | None:
        """A connection to the pod that is open already, if there is one."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if not connection.is_closed and connection.idle_since_s > self._loop.time() - IDLE_S:
                connection.begin()
                return connection
            connection.close()
        return None

    async def connect(self, address: str) -> PodConnection:
        """A new connection to the pod. Raises PodUnreachable."""
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await self._loop.create_connection(
                    PodConnection, host.strip("[]"), int(port)
                )
        except (OSError, TimeoutError) as error:
            raise PodUnreachable(f"no connection to the pod at {address}: {error}") from error
        connection.begin()
        return connection

    def release(self, address: str, connection: PodConnection) -> None:
        """Keep a connection for the next exchange if it is fit for one."""
        idle = self._idle.setdefault(address, deque())
        if connection.can_be_reused and len(idle) < _MOST_IDLE:
            connection.idle_since_s = self._loop.time()
            idle.append(connection)
        else:
            connection.close()

    async def keep_tidy(self) -> None:
        """Close what has been idle for long, until cancelled: pods come and go."""
        while True:
            await asyncio.sleep(IDLE_S / 2)
            self.drop_idle_since(self._loop.time() - IDLE_S)

    def drop_idle_since(self, oldest_s: float) -> None:
        """Close connections that were last used before, and forget addresses without any."""
        for address, idle in list(self._idle.items()):
            while idle and (idle[0].is_closed or idle[0].idle_since_s <= oldest_s):
                idle.popleft().close()
            if not idle:
                del self._idle[address]

    def forget(self, addresses: Iterable[str]) -> None:
        """Close what is idle towards pods that are gone."""
        for address in addresses:
            for connection in self._idle.pop(address, ()):
                connection.close()

    @property
    def addresses(self) -> list[str]:
        """Addresses with idle connections."""
        return list(self._idle)

    def close(self) -> None:
        """Close everything idle."""
        self.forget(list(self._idle))
