"""Client connections with a test's own handler of inference requests."""

import asyncio
import contextlib
import gc
import signal
import socket
import urllib.error
import urllib.request
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.__main__ import running_app
from gateway.errors import ClientClosedRequest
from gateway.http.client_request import ClientRequest
from gateway.http.headers import MAX_HEAD_BYTES, MAX_TARGET_BYTES, KnownHeads
from gateway.http.listener import ConnectionStarts
from gateway.http.server import GatewayProtocol, TakeWarm
from gateway.http.targets import ModelTarget, Verb
from gateway.settings import GatewaySettings
from registry.domain.model import ModelName, Tier
from registry.domain.pod import PodInfo
from tests import servers
from tests.gateway.asynchronous import run_async
from tests.gateway.placer_harness import eventually, running_placer

Handle = Callable[[ClientRequest], Awaitable[None]]
Find = Callable[[bytes, bytes], ModelTarget | None]

PATH = b"/v2/models/m/infer"
TARGET = ModelTarget(ModelName("default", "m"), "m", Verb.INFER)
HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\n"


def find_target(path: bytes, host: bytes) -> ModelTarget | None:
    return TARGET if path == PATH else None


async def not_inference(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that echoes the body."""
    body, is_whole = b"", False
    while not is_whole:
        message = await receive()
        body += message["body"]
        is_whole = not message["more_body"]
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connected(
    handle: Handle,
    *,
    keep_alive_s: int = 75,
    find: Find = find_target,
    take_warm: TakeWarm | None = None,
    protocol_class: type[GatewayProtocol] = GatewayProtocol,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, list[GatewayProtocol]]]:
    """A client's connection to a server with this handler, and the server's protocols."""
    config = uvicorn.Config(not_inference, timeout_keep_alive=keep_alive_s, ws="none")
    protocols: list[GatewayProtocol] = []
    make = partial(
        protocol_class,
        find,
        handle,
        ConnectionStarts(),
        KnownHeads(),
        take_warm,
        config=config,
        app_state={},
    )

    def protocol() -> GatewayProtocol:
        protocols.append(make(server_state=ServerState()))
        return protocols[-1]

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer, protocols
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            for each in protocols:  # further clients' connections may not have ended yet
                each.transport.abort()
            for _ in range(3):
                await asyncio.sleep(0)


async def body_of(client: ClientRequest) -> bytes:
    chunks: list[bytes] = []
    while not client.is_complete or not chunks:
        chunks += await client.receive_chunks()
        if client.is_complete:
            break
    return b"".join(chunks)


async def echo(client: ClientRequest) -> None:
    client.respond(200, [], await body_of(client))


async def read_response(reader: asyncio.StreamReader) -> bytes:
    """The body of the next response."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))


@run_async
async def test_reads_the_body_of_a_request_that_offers_an_upgrade() -> None:
    """Java's own client offers h2c with its first request."""
    for head in (HEAD, HEAD.replace(b"/v2/models/m/infer", b"/other")):
        async with connected(echo) as (reader, writer, _):
            body = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
            offer = b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: %d\r\n\r\n"
            writer.write(head + offer % len(body) + body[:5])
            await asyncio.sleep(0.05)
            writer.write(body[5:] + HEAD + b"content-length: 2\r\n\r\nok")
            assert await read_response(reader) == body
            assert await read_response(reader) == b"ok"


KNOWN = HEAD + b"content-length: 2\r\n\r\n"


@pytest.mark.parametrize(
    ("segments", "bodies", "known_total"),
    [
        pytest.param([KNOWN + b"ok"], [b"ok"], 1, id="whole"),
        pytest.param([KNOWN, b"ok"], [b"ok"], 0, id="body-later"),
        pytest.param([KNOWN[:9], KNOWN[9:] + b"ok"], [b"ok"], 0, id="split-head"),
        pytest.param([b"\r\n" + KNOWN + b"ok"], [b"ok"], 0, id="blank-line"),
        pytest.param([KNOWN + b"ok" + KNOWN + b"no"], [b"ok", b"no"], 0, id="pipelined"),
        pytest.param(
            [KNOWN + b"ok" + KNOWN[:9], KNOWN[9:] + b"no"], [b"ok", b"no"], 0, id="next-head-split"
        ),
        pytest.param(
            [HEAD + b"content-length: %d\r\n\r\n" % len(KNOWN + b"ok"), KNOWN + b"ok"],
            [KNOWN + b"ok"],
            0,
            id="as-a-body",
        ),
        pytest.param(
            [KNOWN + b"ok" + HEAD + b"x-a: ", KNOWN + b"ok"], [b"ok", None], 0, id="as-a-header"
        ),
        pytest.param([KNOWN + b"okNONSENSE\r\n\r\n"], [b"ok", None], 0, id="nonsense-behind"),
    ],
)
@run_async
async def test_a_known_head_begins_a_request_only_where_the_parser_would_read_one(
    segments: list[bytes], bodies: list[bytes | None], known_total: int
) -> None:
    """`bodies`: None for a refusal; `known_total`: requests that are not parsed again."""
    known = 0

    async def serve(client: ClientRequest) -> None:
        nonlocal known
        known += client.head is not None
        await echo(client)

    async with connected(serve) as (reader, writer, protocols):
        writer.write(KNOWN + b"ok")
        assert await read_response(reader) == b"ok"
        assert known == 0
        for segment in segments:
            protocols[0].data_received(segment)
        for body in bodies:
            if body is None:
                assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
            else:
                assert await read_response(reader) == body
        assert known == known_total


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(b"http://m.a/v2/models/m/infer", id="http"),
        pytest.param(b"http://user@m.a/v2/models/m/infer", id="user"),
        pytest.param(b"ftp://m.a/v2/models/m/infer", id="scheme"),
    ],
)
@run_async
async def test_refuses_absolute_targets(target: bytes) -> None:
    async with connected(echo) as (reader, writer, _):
        writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n" % target)
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "coding",
    [
        pytest.param(b"gzip, chunked", id="compressed"),
        pytest.param(b"gzip\r\ntransfer-encoding: chunked", id="compressed-in-two-headers"),
        pytest.param(b"identity, chunked", id="identity-first"),
        pytest.param(b"identity", id="identity"),
        pytest.param(b"gzip", id="compressed-alone"),
        pytest.param(b"chunked, chunked", id="twice"),
        pytest.param(b"chunked\r\nTransfer-Encoding: chunked", id="twice-in-two-headers"),
        pytest.param(b"chunked\r\ntransfer-encoding: identity", id="identity-last"),
        pytest.param(b"chunked, gzip", id="chunked-first"),
        pytest.param(b", chunked", id="empty-first"),
        pytest.param(b"chunked,", id="empty-last"),
        pytest.param(b"", id="empty"),
        pytest.param(b"chunked;q=1", id="parameter"),
        pytest.param(b"chunked\t", id="tab"),
        pytest.param(b"\x0bchunked", id="vertical-tab"),
        pytest.param(b"xchunked", id="other"),
        pytest.param(b'"chunked"', id="quoted"),
    ],
)
@pytest.mark.parametrize("head", [HEAD, HEAD.replace(b"/v2/models/m/infer", b"/other")])
@run_async
async def test_refuses_codings_other_than_chunked(head: bytes, coding: bytes) -> None:
    """RFC 9112, section 6.1: what a proxy in front reads otherwise would hide a request."""
    served = False

    async def serve(client: ClientRequest) -> None:
        nonlocal served
        served = True
        client.respond(200, [], b"")

    async with connected(serve) as (reader, writer, _):
        writer.write(head + b"transfer-encoding: %b\r\n\r\n0\r\n\r\n" % coding + HEAD + b"\r\n")
        response = await reader.read()
        assert response.startswith((b"HTTP/1.1 501 ", b"HTTP/1.1 400 ")), response
        assert response.count(b"\r\n\r\n") == 1
        assert b"connection: close" in response
        assert b"transfer-encoding" in response
    assert not served


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b"chunked  ", b"\tchunked"])
@run_async
async def test_reads_chunks(coding: bytes) -> None:
    async with connected(echo) as (reader, writer, _):
        writer.write(HEAD + b"transfer-encoding: %b\r\n\r\n2\r\nok\r\n0\r\n\r\n" % coding)
        assert await read_response(reader) == b"ok"


@run_async
async def test_trailers_are_not_added_to_the_headers() -> None:
    async def names(client: ClientRequest) -> None:
        await body_of(client)
        client.respond(200, [], b",".join(name for name, _ in client.headers))

    async with connected(names) as (reader, writer, _):
        chunks = b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nauthorization: me\r\n\r\n"
        writer.write(HEAD + chunks)
        assert await read_response(reader) == b"host,transfer-encoding"


@run_async
async def test_a_running_request_is_notified_of_a_disconnect_despite_pipelining() -> None:
    gone = asyncio.Event()

    async def stream(client: ClientRequest) -> None:
        client.on_disconnect = gone.set
        client.start_response(200, b"", b"")
        while not gone.is_set():
            client.write_body(b"x" * 1000, is_last=False)
            await asyncio.sleep(0.01)
        assert client.disconnected

    for second in (HEAD, b"GET /other HTTP/1.1\r\nhost: x\r\n"):
        gone.clear()
        async with connected(stream) as (reader, writer, protocols):
            writer.write(HEAD + b"\r\n" + second + b"\r\n")
            await reader.readexactly(1000)
            writer.transport.abort()
            await gone.wait()
            await eventually(lambda: not protocols[0].tasks)


@run_async
async def test_a_client_that_does_not_read_is_not_served_further() -> None:
    served = 0

    async def large(client: ClientRequest) -> None:
        nonlocal served
        served += 1
        client.respond(200, [], b"x" * 1_000_000)

    async with connected(large) as (reader, writer, protocols):
        writer.write((HEAD + b"\r\n") * 100)
        await asyncio.sleep(0.3)
        assert protocols[0].transport.get_write_buffer_size() < 3_000_000
        for _ in range(100):
            assert len(await read_response(reader)) == 1_000_000
        assert served == 100


@run_async
async def test_a_connection_is_not_idle_while_a_request_runs() -> None:
    release = [asyncio.Event() for _ in range(2)]
    served = iter(release)

    async def held(client: ClientRequest) -> None:
        await next(served).wait()
        client.respond(200, [], b"ok")

    async with connected(held, keep_alive_s=1) as (reader, writer, _):
        writer.write(HEAD + b"\r\n" + HEAD)
        await asyncio.sleep(0.05)
        release[0].set()
        assert await read_response(reader) == b"ok"
        writer.write(b"\r\n")  # the second began before the first response
        await asyncio.sleep(1.2)
        release[1].set()
        assert await read_response(reader) == b"ok"


@pytest.mark.slow
@pytest.mark.parametrize("beginning", [b"", HEAD, b"POST /v2/models/m/infer HT"])
@run_async
async def test_closes_a_connection_without_a_complete_head(beginning: bytes) -> None:
    async with connected(echo, keep_alive_s=1) as (reader, writer, protocols):
        writer.write(beginning)
        assert await reader.read() == b""
        await eventually(lambda: not protocols[0].connections)


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
@pytest.mark.parametrize(
    ("beginning", "more"), [(HEAD + b"x-long: ", b"y"), (HEAD, b"x-many: y\r\n")]
)
@run_async
async def test_rejects_a_long_head(beginning: bytes, more: bytes, end: bytes) -> None:
    async with connected(echo) as (reader, writer, _):
        writer.write(beginning + more * (MAX_HEAD_BYTES // len(more)) + end)
        response = await reader.read()
        assert response.startswith(b"HTTP/1.1 431 "), response
        assert b"may have 65536 bytes, had 65" in response


@pytest.mark.parametrize("end", [b"", b" HTTP/1.1\r\nhost: x\r\n\r\n"])
@pytest.mark.parametrize("path", [b"/", b"/v2/models/m/infer?", b"http://x/"])
@run_async
async def test_rejects_a_long_target(path: bytes, end: bytes) -> None:
    """The parser's own limit would be 65,535 bytes."""
    for length in (MAX_TARGET_BYTES + 1, 2 * MAX_HEAD_BYTES):
        async with connected(echo) as (reader, writer, _):
            writer.write(b"POST " + path.ljust(length, b"x") + end)
            response = await reader.read()
            assert response.startswith(b"HTTP/1.1 414 "), response
            assert b"may have 32768 bytes, had " in response


@run_async
async def test_takes_the_longest_target() -> None:
    async with connected(echo) as (reader, writer, _):
        path = b"/v2/models/m/infer?".ljust(MAX_TARGET_BYTES, b"x")
        writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nok" % path)
        assert await read_response(reader) == b"ok"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param(b"BREW / HTTP/1.1\r\n", b"the request is not valid", id="method"),
        pytest.param(b"GET /\xff HTTP/1.1\r\n", b"the request is not valid", id="target"),
        pytest.param(HEAD + b"a: b\0\r\n", b"the last valid header was 'host'", id="header"),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n",
            b"the last valid header was 'transfer-encoding'",
            id="two-lengths",
        ),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\n\r\n2 \r\n", b"the body is not valid", id="chunk"
        ),
    ],
)
@run_async
async def test_says_where_a_request_is_not_http(data: bytes, text: bytes) -> None:
    async def wait(client: ClientRequest) -> None:
        with contextlib.suppress(ClientClosedRequest):
            await body_of(client)

    async with connected(wait) as (reader, writer, _):
        writer.write(data)
        response = await reader.read()
        assert response.startswith(b"HTTP/1.1 400 "), response
        assert text in response


@run_async
async def test_counts_the_head_of_each_request_separately() -> None:
    async with connected(echo) as (reader, writer, _):
        for _ in range(3):  # each is counted separately
            writer.write(HEAD + b"x-long: " + b"y" * (MAX_HEAD_BYTES // 2))
            await asyncio.sleep(0.02)
            writer.write(b"\r\ncontent-length: 100000\r\n\r\n" + b"z" * 100_000)
            assert await read_response(reader) == b"z" * 100_000


@run_async
async def test_sends_a_status_without_phrase() -> None:
    async def odd(client: ClientRequest) -> None:
        client.respond(799, [], b"odd")

    async with connected(odd) as (reader, writer, _):
        writer.write(HEAD + b"\r\n")
        assert await reader.readline() == b"HTTP/1.1 799 \r\n"


@run_async
async def test_aborting_a_response_does_not_wait_for_the_client() -> None:
    broken = asyncio.Event()

    async def broken_off(client: ClientRequest) -> None:
        client.start_response(200, b"", b"")
        client.write_body(b"x" * 50_000_000, is_last=False)
        client.abort_response()
        broken.set()

    async with connected(broken_off) as (_, writer, protocols):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(HEAD + b"\r\n")
        await broken.wait()
        await eventually(lambda: not protocols[0].connections)


@run_async
async def test_a_client_that_disconnects_during_the_model_lookup_is_not_served(
    tmp_path: Path,
) -> None:
    """The model is looked up before `on_disconnect` is set."""
    asked: list[asyncio.StreamWriter] = []
    pod = await asyncio.start_server(lambda _, writer: asked.append(writer), "127.0.0.1", 0)
    with servers.redis_server(tmp_path) as redis:
        settings = GatewaySettings(redis_url=redis.url)
        async with (
            pod,
            running_app(settings) as app,
            running_placer(redis.url, "default") as harness,
        ):
            spec = await harness.declare("m")
            host, port = pod.sockets[0].getsockname()
            info = PodInfo("pod-a", f"{host}:{port}", "node", slots=1)
            epoch = await harness.registry.register_pod(info, lease_ttl_s=60)
            await harness.registry.set_tier("pod-a", epoch, spec.key, Tier.DEVICE, 1)
            state = app.pools.owner_of(spec.name).watch.state
            models = state.models
            await eventually(lambda: state.holders(spec.key))
            async with connected(app.infer) as (_, writer, protocols):
                del models[spec.name]  # as if its update had not arrived
                assert redis.process is not None
                redis.process.send_signal(signal.SIGSTOP)
                writer.write(HEAD + b"\r\n")
                await eventually(lambda: protocols and protocols[0].tasks)
                request = protocols[0].cycle
                writer.transport.abort()
                await eventually(lambda: request.disconnected)
                redis.process.send_signal(signal.SIGCONT)
                await eventually(lambda: not protocols[0].tasks)
            assert spec.name in models
    assert not asked


@pytest.mark.parametrize("refused", ["early", "invalid"])
@run_async
async def test_a_client_that_still_sends_gets_the_refusal(refused: str) -> None:
    """A close with unread bytes resets the connection, and with it the response."""

    async def refuse(client: ClientRequest) -> None:
        client.keep_alive = False
        client.respond(400, [], b"no")

    head = b"content-length: %d\r\n\r\n" % (16 << 20)
    if refused == "invalid":
        head = b"transfer-encoding: chunked\r\n\r\nno size\r\n"
    async with connected(refuse) as (reader, writer, protocols):
        writer.write(HEAD + head)
        await eventually(lambda: protocols and protocols[0]._lingering is not None)
        for _ in range(16):
            writer.write(bytes(1 << 20))
            await writer.drain()
        response = await reader.read()
        assert response.startswith(b"HTTP/1.1 400 "), response
        writer.write_eof()
        await eventually(protocols[0].transport.is_closing)


@pytest.mark.parametrize(
    ("limit", "pause_s"),
    [
        pytest.param("LINGER_PAUSE_S", None, id="silent"),
        pytest.param("LINGER_S", 0.01, id="sends-on"),
    ],
)
@run_async
async def test_a_client_that_never_closes_is_closed(
    monkeypatch: pytest.MonkeyPatch, limit: str, pause_s: float | None
) -> None:
    monkeypatch.setattr(f"gateway.http.listener.{limit}", 0.2)

    async def refuse(client: ClientRequest) -> None:
        client.keep_alive = False
        client.respond(400, [], b"no")

    async with connected(refuse) as (reader, writer, protocols):
        writer.write(HEAD + b"content-length: 5\r\n\r\n" + HEAD + b"content-length: 0\r\n\r\n")
        assert (await reader.read()).count(b"HTTP/1.1") == 1
        while not protocols[0].transport.is_closing():
            if pause_s is not None:
                writer.write(b"more")
            await asyncio.sleep(pause_s or 0.01)


@run_async
async def test_what_is_dropped_leaves_turns_of_the_loop_to_others() -> None:
    """libuv reads a connection that always has more up to 32 times in a turn: 8 MiB."""
    most = turn = 0

    async def refuse(client: ClientRequest) -> None:
        client.keep_alive = False
        client.respond(413, [], b"no")

    class Counting(GatewayProtocol):
        def data_received(self, data: bytes) -> None:
            nonlocal most, turn
            turn += len(data)
            most = max(most, turn)
            super().data_received(data)

    def next_turn() -> None:
        nonlocal turn
        turn = 0
        loop.call_soon(next_turn)

    loop = asyncio.get_running_loop()
    async with connected(refuse, protocol_class=Counting) as (_, writer, _):
        address = writer.get_extra_info("peername")

        def send() -> None:
            with socket.create_connection(address) as connection:
                connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % (64 << 20))
                connection.sendall(bytes(64 << 20))

        loop.call_soon(next_turn)
        await asyncio.to_thread(send)
    assert most <= 1 << 20


@run_async
async def test_a_client_that_sends_all_before_it_reads_gets_the_refusal() -> None:
    """As Python's urllib does, and with it a body of three times the limit."""

    async def refuse(client: ClientRequest) -> None:
        client.keep_alive = False
        client.respond(413, [], b"no")

    async with connected(refuse) as (_, writer, _):
        url = "http://{}:{}/v2/models/m/infer".format(*writer.get_extra_info("peername"))

        def send() -> int:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                opener.open(url, bytes(200 << 20), timeout=60)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code
            return 0

        assert await asyncio.to_thread(send) == 413


@pytest.mark.parametrize("body", [b"{}", b"{"], ids=["served", "lost-in-its-body"])
@run_async
async def test_a_closed_connection_is_freed_without_the_garbage_collector(body: bytes) -> None:
    async def handle(client: ClientRequest) -> None:
        with contextlib.suppress(ClientClosedRequest):
            await body_of(client)
            client.respond(200, [], b"ok")

    gc.disable()
    try:
        async with connected(handle) as (reader, writer, protocols):
            writer.write(HEAD + b"content-length: 2\r\n\r\n" + body)
            if len(body) == 2:
                await reader.readuntil(b"ok")
            await eventually(lambda: protocols)
            freed = weakref.ref(protocols.pop())
            writer.close()
            await eventually(lambda: freed() is None)
    finally:
        gc.enable()


@pytest.mark.parametrize(("count", "is_kept"), [(62, True), (400, False)])
@run_async
async def test_heads_of_many_headers_are_not_kept(count: int, is_kept: bool) -> None:
    request = HEAD + b"a:\r\n" * count + b"content-length: 0\r\n\r\n"
    async with connected(echo) as (reader, writer, protocols):
        for _ in range(2):
            writer.write(request)
            assert await read_response(reader) == b""
        assert bool(protocols[0].heads) is is_kept
