"""Request bodies: counted, buffered while small, otherwise streamed once."""

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from gateway.errors import BadRequest, BodiesFull, UnsupportedCoding
from gateway.http.body import BodyLimits, HeldBodies, IncomingBody
from tests.gateway.asynchronous import run_async

LIMITS = BodyLimits(max_bytes=100, buffer_bytes=10, timeout_s=0.02)
HELD = HeldBodies(1 << 20, 1 << 20)


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
async def test_puts_the_rest_of_a_long_body_into_a_file_that_can_be_read_again() -> None:
    body = body_of(b"a" * 12, b"b", b"c")
    await body.receive()
    assert (b"".join(body.buffered), body.is_complete) == (b"a" * 12, True)
    for _ in range(2):
        assert b"".join([piece async for piece in body.pieces_of_file()]) == b"bc"
    assert HELD.disk_bytes == 2
    body.close()
    assert (HELD.disk_bytes, HELD.memory_bytes) == (0, 0)


def open_full_disk() -> IO[bytes]:
    return Path("/dev/full").open("r+b")


@pytest.mark.parametrize(
    ("patched", "value", "message"),
    [
        ("TemporaryFile", open_full_disk, "temporary file, which failed: No space left"),
        ("tempdir", "/nowhere", "No such file or directory"),
    ],
)
@run_async
async def test_a_disk_that_takes_nothing_is_reported_and_frees_the_budget(
    monkeypatch: pytest.MonkeyPatch, patched: str, value: object, message: str
) -> None:
    monkeypatch.setattr(f"tempfile.{patched}", value)
    body = body_of(b"a" * 12, b"b")
    with pytest.raises(BodiesFull, match=message):
        await body.receive()
    body.close()
    assert (HELD.disk_bytes, HELD.memory_bytes) == (0, 0)


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
