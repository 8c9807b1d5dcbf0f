"""Connections over HTTP/1.1 to a model server, kept open between requests.

A request by httpx takes 2 to 3 ms of CPU time, more than the pod's own part of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import httptools
import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

IDLE_S: Final = 3.0
"""How long an unused connection is kept: uvicorn, MLServer's, closes one after 5 s."""


class NotConnected(Exception):
    """No connection: nothing was sent."""


class ConnectionEnded(Exception):
    """The server ended the connection before its response was complete."""


@dataclass(slots=True)
class Answer:
    """A response. Header names are in lower case."""

    status_code: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def is_client_error(self) -> bool:
        return 400 <= self.status_code < 500

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """The content; raises ValueError."""
        return orjson.loads(self.content)


class _Connection(asyncio.Protocol):
    """One request at a time; callbacks of its parser are called by httptools."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since_s = 0.0
        self.can_stay = True
        """Whether the server keeps it open after the response."""
        self._answer = Answer()
        self._parts: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[Answer] | None = None

    async def exchange(self, request: bytes) -> Answer:
        """Send a request; raises ConnectionEnded."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionEnded("the connection is closed")
        self._done = asyncio.get_running_loop().create_future()
        self._answer, self._parts = Answer(), []
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)
        return await self._done

    def close(self) -> None:
        self.can_stay = False
        if self.transport is not None:
            self.transport.abort()

    # Of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's has no such base

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():  # nothing was asked
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"its response is no HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.can_stay = False
        self._fail(str(exc or "it was closed"))

    def _fail(self, reason: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionEnded(reason))

    # Of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._answer.status_code = self._parser.get_status_code()
        self._answer.content = b"".join(self._parts)
        self.can_stay = self.can_stay and self._parser.should_keep_alive()
        if self._done is not None and not self._done.done():
            self._done.set_result(self._answer)


class Connections:
    """As many as there are requests at once. Belongs to the event loop."""

    def __init__(self, url: str, *, connect_timeout_s: float) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[_Connection] = []

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def request(
        self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """The response; raises NotConnected, ConnectionEnded. Cancelled, it ends the connection."""
        lines = [
            f"{method} {self._prefix}{path} HTTP/1.1",
            f"host: {self._authority}",
            f"content-length: {len(content)}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
            "\r\n",
        ]
        connection = self._take() or await self._connect()
        try:
            answer = await connection.exchange("\r\n".join(lines).encode("latin-1") + content)
        except BaseException:
            connection.close()
            raise
        if connection.can_stay:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _take(self) -> _Connection | None:
        """The connection that was used last, unless the server may be about to close it."""
        until_s = asyncio.get_running_loop().time() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.can_stay and connection.idle_since_s >= until_s:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(_Connection, self._host, self._port)
        except (OSError, TimeoutError) as error:
            raise NotConnected(f"{type(error).__name__} {error}") from error
        return connection
