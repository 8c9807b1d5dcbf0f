"""Connections to a model server: kept, counted, and ended where a response is none."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from runtime.engines.model_server.connections import ConnectionEnded, Connections, NotConnected
from tests import servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Name: value\r\n\r\nhi"


class Scripted:
    """A server that answers each request with the next of its texts, and then closes."""

    def __init__(self, *texts: bytes) -> None:
        self.texts = list(texts)
        self.connections = 0
        self.requests: list[bytes] = []
        self.active: set[asyncio.StreamWriter] = set()
        self.lost = asyncio.Event()
        """Set when a client has ended its connection."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.active.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                if not self.texts:
                    break
                text = self.texts.pop(0)
                writer.write(text)
                await writer.drain()
                if text == b"":
                    await reader.read()
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self.lost.set()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.active.discard(writer)


@asynccontextmanager
async def _running(*texts: bytes) -> AsyncIterator[tuple[Scripted, Connections]]:
    script = Scripted(*texts)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connections = Connections(f"http://127.0.0.1:{port}/base/", connect_timeout_s=5)
    try:
        yield script, connections
    finally:
        connections.close()
        server.close()
        async with asyncio.timeout(30):
            while script.active:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.001)
            await server.wait_closed()


async def test_a_connection_serves_several_requests() -> None:
    chunked = b"HTTP/1.1 404 No\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
    async with _running(OK, chunked) as (script, connections):
        first = await connections.request("POST", "/v2", b"body", {"x-own": "1"})
        second = await connections.request("GET", "/v2")
    assert (first.status_code, first.content, first.headers["x-name"]) == (200, b"hi", "value")
    assert (second.status_code, second.text, second.is_client_error) == (404, "abc", True)
    assert script.connections == 1
    head = script.requests[0]
    assert head.startswith(b"POST /base/v2 HTTP/1.1\r\n")
    assert b"x-own: 1\r\n" in head
    assert head.endswith(b"\r\n\r\nbody")


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    closing = OK.replace(b"X-Name: value", b"connection: close")
    async with _running(closing, OK) as (script, connections):
        for _ in range(2):
            assert (await connections.request("GET", "/")).status_code == 200
    assert script.connections == 2


async def test_requests_at_once_have_a_connection_each() -> None:
    async with _running(OK, OK, OK) as (script, connections):
        found = await asyncio.gather(*(connections.request("GET", "/") for _ in range(3)))
    assert [each.content for each in found] == [b"hi"] * 3
    assert script.connections == 3


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"no HTTP at all\r\n\r\n", id="no-http"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", id="no-length"),
    ],
)
async def test_a_response_that_is_no_http_ends_the_connection(text: bytes) -> None:
    async with _running(text, OK) as (script, connections):
        with pytest.raises(ConnectionEnded, match="no HTTP"):
            await connections.request("GET", "/")
        assert (await connections.request("GET", "/")).content == b"hi"
    assert script.connections == 2


async def test_a_server_that_leaves_before_its_response_is_told() -> None:
    async with _running() as (_, connections):
        with pytest.raises(ConnectionEnded):
            await connections.request("GET", "/")


async def test_a_cancelled_request_ends_its_connection() -> None:
    async with _running(b"") as (script, connections):
        request = asyncio.create_task(connections.request("GET", "/"))
        async with asyncio.timeout(30):
            while not script.requests:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.001)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            await script.lost.wait()


async def test_nothing_is_sent_where_nobody_listens() -> None:
    url = f"http://127.0.0.1:{servers.free_port()}"
    with pytest.raises(NotConnected):
        await Connections(url, connect_timeout_s=5).request("GET", "/")
