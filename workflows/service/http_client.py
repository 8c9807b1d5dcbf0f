"""HTTP/1.1 requests with keep-alive connections on httptools: to the gateway, and loads at pods.

`httpx` costs 2.5 ms of CPU a request (`docs/benchmarks.md`), several steps' worth of this process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import httptools

from common.tls import PartTls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONNECT_TIMEOUT_S: Final = 2.0
MAX_IDLE: Final = 64
"""Connections kept for each address."""


class NoResponseError(Exception):
    """The server could not be reached, or closed the connection before its response."""


class UnreachableError(NoResponseError):
    """No connection: nothing was sent."""


class ResponseTooLargeError(Exception):
    """A response over the limit; its rest is not read."""


@dataclass(slots=True)
class HttpResponse:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """By name in lower case."""
    body: bytes = b""


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, max_bytes: int) -> None:
        self.used_total = 0
        self.keeps_alive = False
        self._max_bytes = max_bytes
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[HttpResponse] | None = None
        self._response = HttpResponse()
        self._chunks: list[bytes] = []
        self._size = 0
        self._on_body: Callable[[bytes], None] | None = None
        self.has_begun = False
        """Some of the response has come."""

    def exchange(
        self, data: bytes, on_body: Callable[[bytes], None] | None = None
    ) -> asyncio.Future[HttpResponse]:
        """`on_body` takes the body of a response with status 200 as it comes."""
        self._on_body, self.has_begun = on_body, False
        self._done = asyncio.get_running_loop().create_future()
        self._response, self._chunks, self._size = HttpResponse(), [], 0
        self.used_total += 1
        self._parser = httptools.HttpResponseParser(self)
        if self._transport is None or self._transport.is_closing():
            self._done.set_exception(NoResponseError("the connection is closed"))
        else:
            self._transport.write(data)
        return self._done

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol, and the parser's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(NoResponseError(f"the response is no HTTP/1.1: {error}"))
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        if self._on_body is not None and self._parser.get_status_code() == 200:
            self._on_body(body)
        else:
            self._chunks.append(body)
        self._size += len(body)
        if self._size > self._max_bytes:
            self._fail(ResponseTooLargeError(f"a response of over {self._max_bytes} bytes"))
            self.close()

    def on_message_complete(self) -> None:
        self.keeps_alive = self._parser.should_keep_alive()
        self._response.status = self._parser.get_status_code()
        self._response.body = b"".join(self._chunks)
        if self._done is not None and not self._done.done():
            self._done.set_result(self._response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(NoResponseError(f"the connection was lost: {exc or 'closed'}"))

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


class HttpClient:
    """Connections to any number of servers. Belongs to one event loop."""

    def __init__(self, *, max_response_bytes: int, tls: PartTls | None = None) -> None:
        self._max_bytes = max_response_bytes
        self._tls = tls or PartTls()
        self._idle: dict[str, deque[_Connection]] = {}

    async def request(
        self, method: str, address: str, path: str, headers: Mapping[str, str], body: bytes = b"",
        *, on_body: Callable[[bytes], None] | None = None,
    ) -> HttpResponse:  # fmt: skip
        """One exchange with the server at `host:port`; cancelling it closes its connection.

        `on_body` takes the body of a response with status 200 as it comes.

        Raises NoResponseError, ResponseTooLargeError.
        """
        lines = [f"{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        data = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
        while True:
            connection = self._take_idle(address) or await self._connect(address)
            is_reused = connection.used_total > 0
            try:
                response = await connection.exchange(data, on_body)
            except NoResponseError:
                connection.close()
                if is_reused and not connection.has_begun:  # the server has closed it meanwhile
                    continue
                raise
            except BaseException:
                connection.close()
                raise
            self._keep(address, connection)
            return response

    def _take_idle(self, address: str) -> _Connection | None:
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self, address: str) -> _Connection:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._max_bytes), host.strip("[]"), int(port),
                    **self._tls.connect_options,
                )  # fmt: skip
        except (OSError, TimeoutError) as error:
            raise UnreachableError(f"{address} cannot be reached: {error!r}") from error
        return connection

    def _keep(self, address: str, connection: _Connection) -> None:
        idle = self._idle.setdefault(address, deque())
        if connection.keeps_alive and connection.is_open and len(idle) < MAX_IDLE:
            idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()
