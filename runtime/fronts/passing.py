"""Passes a whole request on to the device process's HTTP server, over a connection of its own.

Request and response are streams: neither is held in memory, and a client that leaves closes both.
"""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import httptools
import orjson

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from runtime.fronts.device_link import DeviceLink

READ_BYTES: Final = 64 * 1024
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"}
)
_LOST: Final = orjson.dumps(
    {"error": "the pod's device process closed the connection before the end of its response"}
)


class Passing:
    """An ASGI application."""

    def __init__(self, link: DeviceLink) -> None:
        self._link = link

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._link.open_connection() as connection:
            connection.setblocking(False)
            await _Exchange(scope, receive, send, connection).run()


class _Exchange:
    """One request; callbacks of its parser are called by httptools.

    It uses the socket itself: a transport that cannot send the rest of a body would also drop the
    response that was sent without reading it.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, connection: socket.socket
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._has_head = False
        self._is_complete = False
        self._body: list[bytes] = []

    async def run(self) -> None:
        sending = asyncio.ensure_future(self._send_request())
        try:
            await self._relay_response()
        finally:
            sending.cancel()
            await asyncio.wait({sending})

    # The request

    async def _send_request(self) -> None:
        """Also closes the connection once the client has left, which ends the response."""
        is_chunked, unsent = False, b""
        try:
            is_chunked, unsent = self._head()
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self._connection.shutdown(socket.SHUT_RDWR)
                    return
                is_last = not message.get("more_body", False)
                unsent += _framed(message.get("body", b""), is_chunked, is_last)
                if unsent:
                    await self._loop.sock_sendall(self._connection, unsent)
                    unsent = b""
                is_chunked = is_chunked and not is_last
        except OSError:  # the device process answers without the rest
            return

    def _head(self) -> tuple[bool, bytes]:
        """Whether the body is sent in chunks, since its length is not known, and the head."""
        scope = self._scope
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        lines = [b"%b %b%b HTTP/1.1" % (scope["method"].encode(), scope["raw_path"], query)]
        is_chunked = False
        for name, value in scope["headers"]:
            is_chunked = is_chunked or name == b"transfer-encoding"
            if name not in _HOP_BY_HOP:
                lines.append(name + b": " + value)
        if is_chunked:
            lines.append(b"transfer-encoding: chunked")
        return is_chunked, b"\r\n".join([*lines, b"connection: close", b"", b""])

    # The response

    async def _relay_response(self) -> None:
        """Until its end; without a whole head the response is 502, and later it breaks off."""
        has_started = False
        while not self._is_complete:
            data = await self._read()
            if not data:
                if not has_started:
                    await self._fail()
                return  # uvicorn closes the client's connection, as the response is not complete
            self._parser.feed_data(data)
            if self._has_head and not has_started:
                has_started = True
                await self._start(self._parser.get_status_code(), self._headers)
            body, self._body = b"".join(self._body), []
            if body or self._is_complete:
                more = not self._is_complete
                await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _read(self) -> bytes:
        try:
            return await self._loop.sock_recv(self._connection, READ_BYTES)
        except OSError:
            return b""

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _fail(self) -> None:
        length = str(len(_LOST)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await self._start(HTTPStatus.BAD_GATEWAY, headers)
        await self._send({"type": "http.response.body", "body": _LOST})

    # Of the parser

    def on_message_begin(self) -> None:
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _HOP_BY_HOP:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._has_head = True
        if self._scope["method"] == "HEAD":
            self._is_complete = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = True


def _framed(content: bytes, is_chunked: bool, is_last: bool) -> bytes:
    """A part of a body as it is sent."""
    if not is_chunked:
        return content
    chunk = b"%x\r\n%b\r\n" % (len(content), content) if content else b""
    return chunk + (b"0\r\n\r\n" if is_last else b"")
