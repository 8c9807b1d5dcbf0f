"""Request bodies: counted, and searched for the model that they name."""

import asyncio
import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gateway.dispatch.pod_request import send_request
from gateway.errors import BadRequest, BodiesFull, UnsupportedCoding
from gateway.http.body import BodyLimits, HeldBodies, IncomingBody
from gateway.http.pod_connection import PodConnectionPool
from tests.gateway.asynchronous import run_async
from tests.gateway.placer_harness import eventually

LIMITS = BodyLimits(max_bytes=100, buffer_bytes=10, timeout_s=0.02)
HELD = HeldBodies(1 << 20)


@dataclass
class FakeSource:
    """A body that arrives in chunks."""

    remaining: list[bytes]
    is_complete: bool = False

    def take_chunks(self) -> list[bytes]:
        return []

    async def receive_chunks(self) -> list[bytes]:
        chunk = self.remaining.pop(0)
        self.is_complete = not self.remaining
        return [chunk]


def body_of(*chunks: bytes) -> IncomingBody:
    return IncomingBody(FakeSource(list(chunks)), None, LIMITS, HELD)


@run_async
async def test_long_bodies_count_until_they_are_closed() -> None:
    limits, held = (
        BodyLimits(max_bytes=1 << 20, buffer_bytes=10, timeout_s=0.02),
        HeldBodies(150_000),
    )
    first, second, third = (
        IncomingBody(FakeSource([b"a" * 60_000, b"b" * 40_000]), None, limits, held)
        for _ in range(3)
    )
    await first.receive()
    assert (sum(map(len, first.buffered)), held.held_bytes) == (100_000, 100_000)
    with pytest.raises(BodiesFull, match="hold"):
        await second.receive()
    with pytest.raises(BodiesFull, match="hold"):
        IncomingBody(FakeSource([]), 100_000, limits, held)
    first.close()
    second.close()
    await third.receive()
    third.close()
    assert held.held_bytes == 0


@run_async
async def test_a_long_body_in_small_packets_is_copied_once() -> None:
    limits = BodyLimits(max_bytes=1 << 24, buffer_bytes=10, timeout_s=0.5)
    packets = [b"%04d" % number * 250 for number in range(2_000)]
    body = IncomingBody(FakeSource(list(packets)), None, limits, HeldBodies(1 << 24))
    await body.receive()
    assert b"".join(body.buffered) == b"".join(packets)
    assert len(body.buffered) < 600
    assert max(map(len, body.buffered)) < 600_000


@run_async
async def test_a_long_body_is_sent_as_its_reader_takes_it() -> None:
    chunks = [bytes(100_000)] * 200

    async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await ended.wait()
        writer.close()

    ended = asyncio.Event()
    limits = BodyLimits(max_bytes=1 << 25, buffer_bytes=10, timeout_s=0.5)
    body = IncomingBody(FakeSource(list(chunks)), None, limits, HeldBodies(1 << 25))
    await body.receive()
    assert [each for piece in body.pieces() for each in piece] == chunks
    pool = PodConnectionPool()
    async with await asyncio.start_server(read_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = await pool.connect(f"127.0.0.1:{port}")
        sending = asyncio.create_task(send_request(connection, b"POST / HTTP/1.1\r\n\r\n", body))
        await eventually(lambda: connection._writable is not None)
        assert connection._transport is not None
        waiting_bytes = connection._transport.get_write_buffer_size()
        sending.cancel()
        connection.close()
        ended.set()
    assert waiting_bytes < 4 << 20


PACKING = BodyLimits(max_bytes=10_000, buffer_bytes=1_000, timeout_s=0.5)


def packed_body(content: bytes) -> IncomingBody:
    return IncomingBody(FakeSource([content[:9], content[9:]]), None, PACKING, HELD)


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
@run_async
async def test_the_model_of_a_compressed_openai_body_is_read(
    coding: str, pack: Callable[[bytes], bytes]
) -> None:
    content = pack(b'{"model": "writer", "prompt": "' + b"a" * 5_000 + b'"}')
    body = packed_body(content)
    assert await body.read_model_field(coding) == "writer"
    assert b"".join(body.buffered) == content  # which the pod gets as it is


@pytest.mark.parametrize(
    ("content", "coding", "error"),
    [
        pytest.param(b"not packed at all", "gzip", BadRequest, id="not-packed"),
        pytest.param(gzip.compress(bytes(1_000_000)), "gzip", BadRequest, id="zeros"),
        pytest.param(b"whatever it is", "br", UnsupportedCoding, id="another-coding"),
    ],
)
@run_async
async def test_a_compressed_body_without_a_model_is_refused(
    content: bytes, coding: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await packed_body(content).read_model_field(coding)
