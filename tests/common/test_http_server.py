"""What the server does where uvicorn alone would lose a body, a disconnect or its time to end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING

import pytest

from common.http_server import HttpServer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

HEAD = b"POST /%s HTTP/1.1\r\nhost: x\r\n"


class Echo:
    """Answers `PATH BODY`; at the path `/wait` only once its client is gone."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gone = asyncio.Event()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        self.begun.set()
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.set()
                return
            body, more = body + message["body"], message["more_body"]
        if scope["path"] == "/wait":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.gone.set()
            return
        content = b"%s %s" % (scope["path"].encode(), body)
        headers = [(b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Test = Callable[[Echo, HttpServer, Client], Coroutine[None, None, None]]


@asynccontextmanager
async def serving(echo: Echo) -> AsyncIterator[tuple[HttpServer, Client]]:
    """The server with a client, which ends at the end of the block."""
    server = HttpServer(echo, drain_s=30)
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        yield server, (reader, writer)
    finally:
        writer.close()
        server.stop()
        await serving


def with_server(test: Test) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def main() -> None:
            echo = Echo()
            async with asyncio.timeout(20), serving(echo) as (server, client):
                await test(echo, server, client)

        asyncio.run(main())

    del run.__wrapped__  # pytest would take its arguments
    return run


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return await reader.readexactly(int(length))


@pytest.mark.parametrize("size", [4, 100_000])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_request_that_wants_to_upgrade_keeps_its_body(size: int, is_split: bool) -> None:
    """As Java's client sends its first request; the next one of the connection is served, too."""
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
    head = HEAD % b"a" + upgrade + b"content-length: %d\r\n\r\n" % size
    following = HEAD % b"b" + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"

    @with_server
    async def run(echo: Echo, server: HttpServer, client: Client) -> None:
        reader, writer = client
        writer.write(head)
        if is_split:
            await writer.drain()
            await echo.begun.wait()
        writer.write(b"x" * size)
        assert await answer(reader) == b"/a " + b"x" * size
        writer.write(following)
        assert await answer(reader) == b"/b ok"

    run()


@with_server
async def test_the_running_one_of_pipelined_requests_learns_that_its_client_is_gone(
    echo: Echo, server: HttpServer, client: Client
) -> None:
    _, writer = client
    empty = b"content-length: 0\r\n\r\n"
    writer.write(HEAD % b"wait" + empty + HEAD % b"b" + empty)
    await echo.begun.wait()
    writer.write(HEAD % b"c" + empty)
    await writer.drain()
    writer.close()
    await echo.gone.wait()


@with_server
async def test_a_body_that_never_comes_does_not_hold_the_end_of_the_server(
    echo: Echo, server: HttpServer, client: Client
) -> None:
    reader, writer = client
    writer.write(HEAD % b"a" + b"content-length: 10\r\n\r\nxx")
    await echo.begun.wait()
    server.stop()
    assert await reader.read() == b""  # closed
    assert echo.gone.is_set()


@with_server
async def test_a_connect_request_is_refused(echo: Echo, server: HttpServer, client: Client) -> None:
    reader, writer = client
    writer.write(b"CONNECT other:80 HTTP/1.1\r\nhost: other:80\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
