"""HTTP/1.1 client of our own parts and servers near them: connections are kept by address.

A request costs 40 to 60 us of CPU, 200 with aiohttp and 2,500 with httpx. It does what those
requests need, no more: no redirects, cookies, proxies, compression or HEAD.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import orjson

from common.http_connection import Connection, ConnectionLost, NotConnected, TimedOut, TooLarge
from common.tls import PartTls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from common.http_headers import Headers


CONNECT_TIMEOUT_S: Final = 2.0
MAX_IDLE_S: Final = 30.0
"""Pods and gateways close idle connections after 65 s."""
MAX_IDLE: Final = 256
UNIX: Final = "unix"
"""In place of a host: `unix:PATH` is the address of a socket."""

Kind = TypeVar("Kind", bound=Connection)


@dataclass(eq=False)
class ConnectionPool(Generic[Kind]):
    """Idle connections to servers, kept by address. Belongs to one event loop."""

    create: Callable[[], Kind]
    """A connection that is not open yet."""
    options: Mapping[str, Any]
    """Of the loop's `create_connection`, such as TLS."""
    connect_timeout_s: float | None
    """Of a connection, TLS included."""
    max_idle_s: float
    """Well below the time after which the servers close idle connections."""
    max_idle: int
    """Connections kept for each address."""

    def __post_init__(self) -> None:
        self._idle: dict[str, deque[Kind]] = {}

    async def take(self, address: str) -> Kind:
        """A connection that was kept, or a new one. Raises NotConnected."""
        return self.take_idle(address) or await self.connect(address)

    def take_idle(self, address: str) -> Kind | None:
        """An open connection, if there is one; the one used last."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            oldest_s = connection.loop.time() - self.max_idle_s
            if not connection.is_closed and connection.idle_since_s > oldest_s:
                return connection
            connection.close()
        return None

    async def connect(self, address: str) -> Kind:
        """A new connection; raises NotConnected. Closes others that have been idle too long."""
        loop = asyncio.get_running_loop()
        self.close_idle_since(loop.time() - self.max_idle_s)
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                if host == UNIX:
                    _, connection = await loop.create_unix_connection(self.create, port)
                else:
                    _, connection = await loop.create_connection(
                        self.create, host.strip("[]"), int(port), **self.options
                    )
        except (OSError, TimeoutError, ValueError, OverflowError) as error:  # also of an address
            raise NotConnected(f"{address} cannot be reached: {error!r}") from error
        return connection

    def release(self, address: str, connection: Kind) -> None:
        """Keep a connection for another exchange, or close it if it cannot be reused."""
        connection.end()
        if connection.is_closed:
            return
        connection.idle_since_s = connection.loop.time()
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle[address] = deque()
        idle.append(connection)
        if len(idle) > self.max_idle:
            idle.popleft().close()

    def close_idle_since(self, oldest_s: float) -> None:
        """Close connections last used at or before this loop time."""
        for address, idle in list(self._idle.items()):
            while idle and (idle[0].is_closed or idle[0].idle_since_s <= oldest_s):
                idle.popleft().close()
            if not idle:
                del self._idle[address]

    def close(self) -> None:
        """Close what is idle."""
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()


MAX_BODY_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes = b""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """Raises ValueError."""
        return orjson.loads(self.body)


@dataclass(frozen=True, slots=True)
class StreamedResponse:
    status: int
    headers: Mapping[str, str]
    _connection: Connection
    _max_bytes: int

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes; raises as `HttpClient.request`."""
        connection, left_bytes = self._connection, self._max_bytes
        while not connection.is_taken:
            await connection.wait_body()
            for chunk in connection.take_body():
                left_bytes -= len(chunk)
                if left_bytes < 0:
                    raise TooLarge(f"a response of over {self._max_bytes} bytes")
                yield chunk

    async def read(self) -> bytes:
        """The rest of the body; raises as `HttpClient.request`."""
        return await self._connection.read_body(self._max_bytes)


class HttpClient(ConnectionPool[Connection]):
    """Connections to any number of servers. Belongs to one event loop."""

    def __init__(
        self,
        *,
        tls: PartTls | ssl.SSLContext | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        connect_timeout_s: float | None = CONNECT_TIMEOUT_S,
        stall_s: float | None = None,
        max_idle_s: float = MAX_IDLE_S,
        max_idle: int = MAX_IDLE,
        resends: bool = True,
    ) -> None:
        """Limits of every exchange, beside those of `ConnectionPool`.

        `tls`: of our parts, or with a context for servers that are named by their addresses.
        `max_body_bytes`: of a response, unless it is received in place. `stall_s`: the longest time
        without a byte of the response; None: any. `resends`: whether a request whose kept
        connection ends without a byte of a response is sent once more, over a new one: most likely
        the server had closed it before.
        """
        options = {} if tls is None else {"ssl": tls}
        super().__init__(
            Connection,
            tls.connect_options if isinstance(tls, PartTls) else options,
            connect_timeout_s=connect_timeout_s,
            max_idle_s=max_idle_s,
            max_idle=max_idle,
        )
        self._max_body_bytes = max_body_bytes
        self._stall_s = stall_s
        self._resends = resends

    async def request(
        self,
        method: str,
        address: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | Sequence[bytes] = b"",
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """One exchange with the server at `host:port`; cancelling it closes its connection.

        `timeout_s`: of the whole exchange. Raises NotConnected, ConnectionLost, InvalidResponse,
        TimedOut, TooLarge; ValueError for a line break in a header.
        """
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._begin(method, address, path, headers, body)
                try:
                    content = await connection.read_body(self._max_body_bytes)
                finally:
                    self.release(address, connection)
        except TimeoutError:
            raise TimedOut(f"{address} gave no response within {timeout_s:g} s") from None
        return Response(connection.status, _texts(connection.headers), content)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        address: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | Sequence[bytes] = b"",
        *,
        resends: bool = True,
    ) -> AsyncIterator[StreamedResponse]:
        """One exchange, whose response is read inside the context; raises as `request`.

        Without `resends` it is not sent again.
        """
        connection = await self._begin(method, address, path, headers, body, resends=resends)
        try:
            found = _texts(connection.headers)
            yield StreamedResponse(connection.status, found, connection, self._max_body_bytes)
        finally:
            self.release(address, connection)

    async def receive(
        self,
        address: str,
        path: str,
        headers: Mapping[str, str] | None,
        parts: Sequence[memoryview],
    ) -> int:
        """Fill `parts` with the body of a response with status 200; returns the status.

        The loop reads from the socket, or decrypts, into their memory. Raises as `request`;
        InvalidResponse for another length.
        """
        connection = await self._begin("GET", address, path, headers, b"", parts)
        try:
            if connection.status == HTTPStatus.OK:
                await connection.wait_end()
            else:
                await connection.read_body(self._max_body_bytes)
        finally:
            self.release(address, connection)
        return connection.status

    async def _begin(
        self,
        method: str,
        address: str,
        path: str,
        headers: Mapping[str, str] | None,
        body: bytes | Sequence[bytes],
        parts: Sequence[memoryview] | None = None,
        *,
        resends: bool = True,
    ) -> Connection:
        """A connection whose response has begun."""
        chunks = ([body] if body else []) if isinstance(body, bytes) else body
        size = sum(map(len, chunks))
        head = _head(method, address, path, headers or {}, size)
        lost: ConnectionLost | None = None
        while True:
            try:
                connection = await (self.connect(address) if lost else self.take(address))
            except NotConnected:
                if lost is None:
                    raise
                raise lost from None  # what was sent before may be executed
            is_kept = connection.used_total > 0
            try:
                connection.start(parts, stall_s=self._stall_s)
                connection.write(head, chunks)
                await connection.wait_head()
            except ConnectionLost as error:
                connection.end()
                if not (self._resends and resends and is_kept) or connection.received_bytes:
                    raise
                lost = error
            except BaseException:
                connection.end()
                raise
            else:
                return connection


def request_blocking(
    method: str,
    url: str,
    body: bytes = b"",
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """One exchange over a connection of its own, for threads without an event loop.

    Raises as `HttpClient.request`; ValueError for what is no URL.
    """
    address, path = split_url(url)
    tls = ssl.create_default_context() if url.startswith("https:") else None

    async def ask() -> Response:
        client = HttpClient(tls=tls)
        try:
            return await client.request(
                method, address, path or "/", headers, body, timeout_s=timeout_s
            )
        finally:
            client.close()

    return asyncio.run(ask())


def split_url(url: str) -> tuple[str, str]:
    """`host:port`, and the path with its query, of an http or https URL; the path may be empty.

    Raises ValueError.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"must be a URL with http or https and a host, was {url!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{host}:{port}", parts.path + (f"?{parts.query}" if parts.query else "")


def _head(method: str, address: str, path: str, headers: Mapping[str, str], size: int) -> bytes:
    """Raises ValueError for a line break in a header, or a character that Latin-1 lacks."""
    host = "" if "host" in headers else f"host: {address}\r\n"
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    text = f"{method} {path} HTTP/1.1\r\n{host}content-length: {size}\r\n{lines}\r\n"
    line_total = len(headers) + (4 if host else 3)
    if text.count("\n") != line_total or text.count("\r") != line_total or " " in path:
        raise ValueError("a request's path and headers must have no line breaks, a path no spaces")
    return text.encode("latin-1")


def _texts(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
