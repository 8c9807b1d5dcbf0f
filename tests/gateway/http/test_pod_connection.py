"""Connections to pods: responses, reuse, and closing of idle ones."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest

from gateway.http.pod_connection import (
    PodConnection,
    PodConnectionLost,
    PodConnectionPool,
    PodUnreachable,
)
from gateway.http.pod_response import KnownResponses
from tests.gateway.asynchronous import run_async
from tests.servers import free_port

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


@asynccontextmanager
async def a_pod(*responses: bytes, closes: bool = False) -> AsyncIterator[str]:
    """A server that sends these responses, one per request, on any number of connections."""
    remaining = list(responses)
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while remaining:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(remaining.pop(0))
                await writer.drain()
        if closes:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def ask(pool: PodConnectionPool, address: str) -> tuple[int, bytes]:
    """One exchange; its connection returns to the pool."""
    connection = pool.take_idle(address) or await pool.connect(address)
    connection.start()
    connection.write(REQUEST)
    await connection.wait_head()
    body = b""
    while not connection.is_complete:
        await connection.wait_body()
        body += b"".join(connection.take_body())
    body += b"".join(connection.take_body())
    pool.release(address, connection)
    return connection.status, body


@run_async
async def test_a_connection_is_reused_after_a_complete_exchange() -> None:
    pool = PodConnectionPool()
    async with a_pod(OK, OK) as address:
        first = await pool.connect(address)
        pool.release(address, first)
        assert not first.can_be_reused  # it was not used
        assert await ask(pool, address) == (200, b"ok")
        second = pool.take_idle(address)
        assert second is not None
        assert second.used_total == 1
        second.close()
    pool.close()


@pytest.mark.parametrize(
    ("response", "body"),
    [
        pytest.param(OK, b"ok", id="length"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            b"ok",
            id="chunked",
        ),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok", id="interim"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", b"", id="no-content"),
    ],
)
@run_async
async def test_reads_a_complete_response(response: bytes, body: bytes) -> None:
    pool = PodConnectionPool()
    async with a_pod(response) as address:
        assert (await ask(pool, address))[1] == body
    pool.close()


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"HTTP/1.1 200 O", id="half-a-head"),
        pytest.param(b"NONSENSE\r\n\r\n", id="no-http"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", id="half-a-body"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n", id="no-last-chunk"
        ),
    ],
)
@run_async
async def test_a_broken_response_raises_connection_lost(response: bytes) -> None:
    pool = PodConnectionPool()
    async with a_pod(response, closes=True) as address:
        with pytest.raises(PodConnectionLost):
            await ask(pool, address)
    pool.close()


@run_async
async def test_an_invalid_response_says_so_and_is_not_asked_for_again() -> None:
    pool = PodConnectionPool()
    async with a_pod(OK, b"NONSENSE\r\n\r\n") as address:
        await ask(pool, address)
        with pytest.raises(PodConnectionLost, match="invalid: the response is no") as lost:
            await ask(pool, address)
        assert not lost.value.was_reused, "the connection is no stale one"
    pool.close()


TIMED = (
    b"HTTP/1.1 200 OK\r\nx-a: b\r\nserver-timing: load;dur=0.0, preprocess;dur=1.0, infer;dur=%d.5,"
    b" postprocess;dur=0.0\r\ncontent-length: %d\r\n\r\n%b"
)


@run_async
async def test_known_heads_are_read_as_by_the_parser() -> None:
    """Their lengths and times differ; the last one comes in pieces."""
    pool = PodConnectionPool()
    bodies = [b"a", b"bcd", b"", b"e" * 300_000]
    responses = [TIMED % (each, len(body), body) for each, body in enumerate(bodies)]
    async with a_pod(*responses) as address:
        for number, body in enumerate(bodies):
            connection = pool.take_idle(address) or await pool.connect(address)
            assert connection.used_total == number
            connection.start()
            connection.write(REQUEST)
            await connection.wait_head()
            assert bool(connection.headers) is (number == 0), "parsed once"
            assert connection.response.status == 200
            assert connection.response.forwarded == b"x-a: b\r\n"
            assert connection.length == b"%d" % len(body)
            assert connection.times_ms == (0.0, 1.0, number + 0.5, 0.0)
            assert connection.all_headers[1:] == [
                (b"server-timing", connection.timing),
                (b"content-length", connection.length),
            ]
            received = b""
            while not connection.is_taken:
                await connection.wait_body()
                received += b"".join(connection.take_body())
            assert received == body
            pool.release(address, connection)
    pool.close()


def opened(known: KnownResponses) -> PodConnection:
    connection = PodConnection(known)
    connection.connection_made(Mock(asyncio.Transport))
    return connection


@run_async
async def test_a_known_response_may_be_cut_anywhere() -> None:
    known, response = KnownResponses(), TIMED % (7, 3, b"abc")
    for cut in range(len(response)):
        connection = opened(known)
        for number in range(2):
            connection.start()
            connection.data_received(response[: cut if number else None])
            if number:
                connection.data_received(response[cut:])
            assert connection.is_complete
            assert connection.times_ms[2] == 7.5
            assert b"".join(connection.take_body()) == b"abc"
        assert not connection.is_closed


def read(connection: PodConnection, data: bytes) -> tuple[object, ...]:
    """What the connection makes of these bytes, as the response to a request."""
    connection.start()
    connection.data_received(data)
    if not connection.has_head:
        return (connection.is_closed,)
    response = connection.response
    return (
        connection.is_closed,
        connection.is_complete,
        response.status,
        response.forwarded,
        connection.length,
        connection.times_ms,
        b"".join(connection.take_body()),
    )


INSERTED = (b"", b"\0", b"\n", b"\r\n", b" ", b":", b"+", b"9", b"\r\ncontent-length: 3",
            b"\r\ntransfer-encoding: chunked", b"\r\n x")  # fmt: skip


@pytest.mark.parametrize("more", INSERTED)
@pytest.mark.parametrize("width", [0, 1], ids=["inserted", "replaced"])
@run_async
async def test_what_resembles_a_known_head_is_read_as_by_the_parser(
    more: bytes, width: int
) -> None:
    known, usual = KnownResponses(), TIMED % (0, 3, b"abc")
    for at in range(len(usual)):
        other = usual[:at] + more + usual[at + width :]
        connection = opened(known)
        for _ in range(2):  # it knows the head's shape from then on
            read(connection, usual)
        assert known
        assert read(connection, other) == read(opened(KnownResponses()), other)


@pytest.mark.parametrize("has_rest", [False, True])
@run_async
async def test_bytes_behind_a_known_response_end_the_connection(has_rest: bool) -> None:
    pool, body = PodConnectionPool(), b"e" * 300_000 if has_rest else b"a"
    async with a_pod(TIMED % (0, 1, b"a"), TIMED % (0, len(body), body + b"more")) as address:
        assert await ask(pool, address) == (200, b"a")
        assert await ask(pool, address) == (200, body)
        assert pool.take_idle(address) is None
    pool.close()


@pytest.mark.parametrize("more", [OK, b"HTTP/1.1 408 Request Time"], ids=["whole", "half"])
@pytest.mark.parametrize("is_idle", [False, True], ids=["at-once", "while-idle"])
@run_async
async def test_an_unrequested_response_is_dropped_and_closes_the_connection(
    more: bytes, is_idle: bool
) -> None:
    response_read, is_closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK if is_idle else OK + more)
        if is_idle:
            await response_read.wait()
            writer.write(more)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        is_closed.set()

    pool = PodConnectionPool()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await ask(pool, address) == (200, b"ok")
        response_read.set()
        async with asyncio.timeout(60):
            await is_closed.wait()
        assert pool.take_idle(address) is None
    pool.close()


@run_async
async def test_trailers_are_not_added_to_the_headers() -> None:
    response = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-late: 1\r\n\r\n"
    async with a_pod(response) as address:
        connection = await PodConnectionPool().connect(address)
        connection.start()
        connection.write(REQUEST)
        await connection.wait_head()
        await connection.wait_body()
        assert connection.headers == [(b"transfer-encoding", b"chunked")]
        connection.close()


@run_async
async def test_an_unreachable_pod_raises_an_error() -> None:
    with pytest.raises(PodUnreachable):
        await PodConnectionPool().connect(f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize(("last_used_s", "is_kept"), [(-60, True), (60, False)])
@run_async
async def test_connections_idle_for_too_long_are_closed(last_used_s: float, is_kept: bool) -> None:
    pool = PodConnectionPool()
    async with a_pod(OK) as address:
        await ask(pool, address)
        pool.close_idle_since(asyncio.get_running_loop().time() + last_used_s)
        connection = pool.take_idle(address)
        assert (connection is not None) is is_kept
        if connection is not None:
            connection.close()


@pytest.mark.parametrize(("max_idle_s", "is_kept"), [(60.0, True), (0.0, False)])
@run_async
async def test_connections_are_reused_for_the_time_that_their_server_keeps_them(
    max_idle_s: float, is_kept: bool
) -> None:
    pool = PodConnectionPool(max_idle_s=max_idle_s)
    async with a_pod(OK) as address:
        await ask(pool, address)
        assert (pool.take_idle(address) is not None) is is_kept
