"""The HTTP client against servers that answer byte for byte what a test gives them."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from common.http_client import HttpClient, request_blocking, split_url
from common.http_connection import (
    MAX_HEAD_BYTES,
    ConnectionLost,
    HttpError,
    InvalidResponse,
    NotConnected,
    TimedOut,
    TooLarge,
)
from common.tls import PartTls
from tests.certificates import write_certificates

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Name: value\r\n\r\nhi"
CHUNKED = (
    b"HTTP/1.1 404 No\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\nx: y\r\n\r\n"
)
LARGE_BYTES = 5 << 20
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    def run(check: Callable[[], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(check(), 60))

    return run


class Server:
    """Answers each request with its next bytes; `b""` of them: ends the connection."""

    def __init__(self, *answers: bytes, ends: bool = False) -> None:
        """`ends`: it closes each connection after one answer."""
        self.answers = list(answers)
        self.ends = ends
        self.requests: list[bytes] = []
        self.connections = 0
        self.received, self.left = asyncio.Event(), asyncio.Event()
        """Set with each request, and when a client has ended its connection."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                self.received.set()
                answer = self.answers.pop(0) if self.answers else b""
                writer.write(answer)
                await writer.drain()
                if self.ends or not answer:
                    break
        self.left.set()
        writer.close()

    @contextlib.asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=tls) as server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.contextmanager
def client(**options: Any) -> Any:
    made = HttpClient(**options)
    try:
        yield made
    finally:
        made.close()


def test_a_connection_serves_several_requests(run: Any) -> None:
    async def check() -> None:
        server = Server(OK, CHUNKED, OK)
        async with server.running() as address:
            with client() as http:
                first = await http.request("POST", address, "/a?b=c", {"x-own": "1"}, b"body")
                second = await http.request("GET", address, "/")
                third = await http.request("PUT", address, "/", {"host": "name"}, [b"pa", b"rts"])
        assert (first.status, first.headers["x-name"], first.body) == (200, "value", b"hi")
        assert (second.status, second.is_success, second.text) == (404, False, "abc")
        assert "x" not in second.headers  # of a trailer
        assert third.is_success
        assert server.connections == 1
        assert server.requests == [
            b"POST /a?b=c HTTP/1.1\r\nhost: %b\r\ncontent-length: 4\r\nx-own: 1\r\n\r\nbody"
            % address.encode(),
            b"GET / HTTP/1.1\r\nhost: %b\r\ncontent-length: 0\r\n\r\n" % address.encode(),
            b"PUT / HTTP/1.1\r\ncontent-length: 5\r\nhost: name\r\n\r\nparts",
        ]

    run(check)


def test_requests_at_once_have_a_connection_each(run: Any) -> None:
    async def check() -> None:
        server = Server(OK, OK, OK)
        async with server.running() as address:
            with client() as http:
                await asyncio.gather(*(http.request("GET", address, "/") for _ in range(3)))
        assert server.connections == 3

    run(check)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 E\r\nx: y\r\n\r\n" + OK, id="1xx"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", id="no-content"),
        pytest.param(OK, id="length"),
        pytest.param(CHUNKED, id="chunked"),
    ],
)
def test_a_response_in_single_bytes_is_complete(run: Any, answer: bytes) -> None:
    async def check() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\n")
                for byte in answer:
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    await asyncio.sleep(0)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with client(resends=False) as http:
                found = [await http.request("GET", address, "/") for _ in range(2)]
        assert found[0] == found[1]
        assert found[0].body in (b"hi", b"abc", b"")
        assert "x" not in found[0].headers

    run(check)


def test_a_body_without_length_ends_with_the_connection(run: Any) -> None:
    async def check() -> None:
        server = Server(b"HTTP/1.1 200 OK\r\n\r\nall", OK, ends=True)
        async with server.running() as address:
            with client() as http:
                assert (await http.request("GET", address, "/")).body == b"all"
                assert (await http.request("GET", address, "/")).body == b"hi"
        assert server.connections == 2

    run(check)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(b"", ConnectionLost, id="nothing"),
        pytest.param(b"HTTP/1.1 200 O", ConnectionLost, id="half-a-head"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", ConnectionLost, id="half"),
        pytest.param(CHUNKED[:-8], ConnectionLost, id="no-last-chunk"),
        pytest.param(b"SSH-2.0\r\n\r\n", InvalidResponse, id="no-http"),
        pytest.param(
            b"HTTP/1.1 101 Go\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            InvalidResponse,
            id="upgrade",
        ),
        pytest.param(OK.replace(b": 2", b": x"), InvalidResponse, id="no-number"),
        pytest.param(
            OK.replace(b"X-Name: value", b"content-length: 3"), InvalidResponse, id="two-lengths"
        ),
        pytest.param(
            OK.replace(b"X-Name: value", b"transfer-encoding: chunked"),
            InvalidResponse,
            id="length-and-chunks",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD_BYTES, InvalidResponse, id="head"),
    ],
)
def test_a_broken_response_is_an_error_and_ends_the_connection(
    run: Any, answer: bytes, error: type[HttpError]
) -> None:
    async def check() -> None:
        server = Server(answer, OK, ends=True)
        async with server.running() as address:
            with client() as http:
                with pytest.raises(error):
                    await http.request("POST", address, "/", body=b"once")
                assert server.connections == 1
                assert (await http.request("GET", address, "/")).body == b"hi"

    run(check)


@pytest.mark.parametrize("more", [OK, b"HTTP/1.1 408 Request Time", b"\0"])
@pytest.mark.parametrize("is_idle", [False, True], ids=["at-once", "while-idle"])
def test_bytes_that_nobody_asked_for_end_the_connection(
    run: Any, more: bytes, is_idle: bool
) -> None:
    async def check() -> None:
        read, left = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK if is_idle else OK + more)
            await read.wait()
            with contextlib.suppress(ConnectionError):
                if is_idle:
                    writer.write(more)
                await reader.read()
            writer.close()
            left.set()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with client() as http:
                assert (await http.request("GET", address, "/")).body == b"hi"
                read.set()
                await left.wait()
                assert http.take_idle(address) is None

    run(check)


def test_a_connection_that_the_server_ended_meanwhile_is_opened_anew_once(run: Any) -> None:
    async def check() -> None:
        server = Server(OK, b"", OK, b"", b"")
        async with server.running() as address:
            with client() as http:
                for _ in range(2):  # the server ends the connection upon the second request
                    assert (await http.request("POST", address, "/", body=b"x")).body == b"hi"
                with pytest.raises(ConnectionLost):
                    await http.request("POST", address, "/", body=b"x")
        assert (server.connections, len(server.requests)) == (3, 5)

    run(check)


def test_a_lost_request_is_not_said_to_be_unsent(run: Any) -> None:
    async def check() -> None:
        server = Server(OK, b"")
        with client() as http:
            async with server.running() as address:
                await http.request("GET", address, "/")
            with pytest.raises(ConnectionLost):  # the next one to connect is refused
                await http.request("GET", address, "/")
        assert len(server.requests) == 2

    run(check)


def test_where_requests_may_not_be_sent_twice_they_are_not(run: Any) -> None:
    async def check() -> None:
        server = Server(OK, b"", OK)
        async with server.running() as address:
            with client(resends=False) as http:
                await http.request("GET", address, "/")
                with pytest.raises(ConnectionLost):
                    await http.request("GET", address, "/")
        assert len(server.requests) == 2

    run(check)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "a..b:80", "no-port", ""])
def test_nothing_is_sent_where_nobody_listens(run: Any, address: str) -> None:
    async def check() -> None:
        with client() as http, pytest.raises(NotConnected, match="cannot be reached"):
            await http.request("GET", address, "/")

    run(check)


def test_a_response_over_the_limit_is_not_read(run: Any) -> None:
    async def check() -> None:
        large = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (
            LARGE_BYTES,
            bytes(LARGE_BYTES),
        )
        server = Server(large)
        async with server.running() as address:
            with client(max_body_bytes=1 << 20) as http:
                with pytest.raises(TooLarge, match="of over 1048576 bytes"):
                    await http.request("GET", address, "/")
                await server.left.wait()

    run(check)


def test_a_streamed_response_is_read_as_slowly_as_it_is_taken(run: Any) -> None:
    async def check() -> None:
        large = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (
            LARGE_BYTES,
            bytes(LARGE_BYTES),
        )
        server = Server(large, OK)
        async with server.running() as address:
            with client(stall_s=0.2) as http:
                async with http.stream("GET", address, "/", {"x": "y"}) as response:
                    assert (response.status, response.headers) == (
                        200,
                        {"content-length": "5242880"},
                    )
                    await asyncio.sleep(0.5)  # longer than the server may stall
                    assert sum([len(chunk) async for chunk in response.chunks()]) == LARGE_BYTES
                async with http.stream("GET", address, "/") as response:
                    assert await response.read() == b"hi"
        assert server.connections == 1

    run(check)


def test_a_streamed_response_that_is_left_ends_the_connection(run: Any) -> None:
    async def check() -> None:
        server = Server(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        async with server.running() as address:
            with client() as http:
                async with http.stream("GET", address, "/") as response:
                    assert await anext(response.chunks()) == b"half"
                await server.left.wait()

    run(check)


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_body_is_received_into_given_memory(run: Any, tmp_path: Path, is_encrypted: bool) -> None:
    tls = PartTls(str(write_certificates(tmp_path)) if is_encrypted else "")
    body = bytes(range(251)) * (LARGE_BYTES // 251)
    sizes = [3, 0, 100_000, len(body) - 100_003]

    async def check() -> None:
        large = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        server = Server(large, CHUNKED, large, OK, OK.replace(b"2\r", b"0\r")[:-2])
        async with server.running(tls.server) as address:
            with client(tls=tls) as http:
                for status in (200, 404, 200):
                    parts = [memoryview(bytearray(size)) for size in sizes]
                    assert await http.receive(address, "/", {}, parts) == status
                    assert (b"".join(parts) == body) is (status == 200)
                (part,) = [memoryview(bytearray(2))]
                assert await http.receive(address, "/", {}, [part]) == 200
                assert bytes(part) == b"hi"
                assert await http.receive(address, "/", {}, []) == 200
        assert server.connections == 1

    run(check)


def test_a_long_body_that_is_not_for_the_memory_is_passed_over(run: Any) -> None:
    async def check() -> None:
        missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n" % LARGE_BYTES
        server = Server(missing + bytes(LARGE_BYTES), OK)
        async with server.running() as address, asyncio.timeout(20):
            with client() as http:
                assert await http.receive(address, "/", {}, [memoryview(bytearray(8))]) == 404
                assert (await http.request("GET", address, "/")).body == b"hi"
        assert server.connections == 1

    run(check)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (OK, "content-length must be 8, was 2"),
        (b"HTTP/1.1 200 OK\r\n\r\n12345678", "content-length must be 8, was none"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n1234", "server ended the connection"),
    ],
)
def test_another_length_than_that_of_the_memory_is_an_error(
    run: Any, answer: bytes, text: str
) -> None:
    async def check() -> None:
        server = Server(answer, ends=True)
        async with server.running() as address:
            with client() as http, pytest.raises(HttpError, match=text):
                await http.receive(address, "/", {}, [memoryview(bytearray(8))])

    run(check)


@pytest.mark.parametrize("begun", [b"HTTP", b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n1234"])
@pytest.mark.parametrize("how", ["stall", "deadline", "cancel", "in-place"])
def test_a_request_that_is_given_up_ends_its_connection(run: Any, begun: bytes, how: str) -> None:
    async def check() -> None:
        server = Server(begun)
        async with server.running() as address:
            with client(stall_s=None if how in ("deadline", "cancel") else 0.1) as http:
                match how:
                    case "stall":
                        with pytest.raises(TimedOut, match="nothing came for"):
                            await http.request("GET", address, "/")
                    case "in-place":
                        with pytest.raises(TimedOut, match="nothing came for"):
                            await http.receive(address, "/", {}, [memoryview(bytearray(8))])
                    case "deadline":
                        with pytest.raises(TimedOut, match=r"no response within 0\.1 s"):
                            await http.request("GET", address, "/", timeout_s=0.1)
                    case "cancel":
                        request = asyncio.create_task(http.request("GET", address, "/"))
                        await server.received.wait()
                        request.cancel()
                        with pytest.raises(asyncio.CancelledError):
                            await request
                await server.left.wait()
                assert http.take_idle(address) is None

    run(check)


@pytest.mark.parametrize(("max_idle_s", "is_kept"), [(60.0, True), (0.0, False)])
def test_connections_are_kept_for_the_time_that_their_server_keeps_them(
    run: Any, max_idle_s: float, is_kept: bool
) -> None:
    async def check() -> None:
        server = Server(OK, OK)
        async with server.running() as address:
            with client(max_idle_s=max_idle_s) as http:
                for _ in range(2):
                    await http.request("GET", address, "/")
        assert server.connections == (1 if is_kept else 2)

    run(check)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/a\r\nx: y", {}),
        ("/a b", {}),
        ("/", {"x": "y\nz: 1"}),
        ("/", {"x\r": "y"}),
        ("/", {"x": "☃"}),
    ],
)
def test_headers_cannot_be_smuggled(run: Any, path: str, headers: dict[str, str]) -> None:
    async def check() -> None:
        server = Server(OK)
        async with server.running() as address:
            with client() as http, pytest.raises(ValueError, match=r"line breaks|latin-1"):
                await http.request("GET", address, path, headers)
        assert not server.requests

    run(check)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://host/a?b=c", ("host:80", "/a?b=c")),
        ("https://user@host", ("host:443", "")),
        ("http://[::1]:8080/", ("[::1]:8080", "/")),
    ],
)
def test_a_url_is_split(url: str, found: tuple[str, str]) -> None:
    assert split_url(url) == found


@pytest.mark.parametrize("url", ["", "host:80", "ftp://host/", "http:///path", "http://host:x/"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"must be a URL|Port"):
        split_url(url)


def test_a_thread_without_a_loop_asks_once(run: Any) -> None:
    async def check() -> None:
        server = Server(OK)
        async with server.running() as address:
            url, headers = f"http://{address}", {"x-own": "1"}
            found = await asyncio.to_thread(
                request_blocking, "POST", url, b"body", timeout_s=60, headers=headers
            )
            await server.left.wait()
        assert found.body == b"hi"
        assert server.requests[0].startswith(b"POST / HTTP/1.1\r\n")
        assert server.requests[0].endswith(b"x-own: 1\r\n\r\nbody")

    run(check)
