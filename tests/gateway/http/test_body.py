"""Request bodies: counted, buffered while small, otherwise streamed once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from gateway.errors import BodiesFull, BodyTooSlow, RequestBodyTooLarge
from gateway.http.body import BodyLimits, IncomingBody
from gateway.http.client_request import ClientClosedRequest
from gateway.http.held_bodies import HeldBodies
from tests.gateway.asynchronous import run_async

LIMITS = BodyLimits(max_bytes=100, buffer_bytes=10, timeout_s=0.02)
HELD = HeldBodies(1 << 20, 1 << 20)


@dataclass
class FakeSource:
    """A body that arrives in chunks; `ends`: `complete`, `disconnected` or `stalled`."""

    remaining: list[bytes]
    ends: str
    is_complete: bool = False

    def take_chunks(self) -> list[bytes]:
        return []

    async def receive_chunks(self) -> list[bytes]:
        if not self.remaining and self.ends == "disconnected":
            raise ClientClosedRequest
        if not self.remaining:
            await asyncio.Event().wait()
        chunk = self.remaining.pop(0)
        self.is_complete = not self.remaining and self.ends == "complete"
        return [chunk]


def body_of(*chunks: bytes, declared: int | None = None, ends: str = "complete") -> IncomingBody:
    return IncomingBody(FakeSource(list(chunks), ends), declared, LIMITS, HELD)


@run_async
async def test_keeps_a_small_body_in_memory() -> None:
    body = body_of(b"ab", b"cd")
    await body.receive()
    assert (b"".join(body.buffered), body.is_complete, body.has_file) == (b"abcd", True, False)


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


@run_async
async def test_a_full_disk_is_reported_and_frees_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", open_full_disk)
    body = body_of(b"a" * 12, b"b")
    with pytest.raises(BodiesFull, match="temporary file, which failed: No space left"):
        await body.receive()
    body.close()
    assert (HELD.disk_bytes, HELD.memory_bytes) == (0, 0)


@run_async
async def test_a_missing_temporary_folder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    body = body_of(b"a" * 12, b"b")
    with pytest.raises(BodiesFull, match="No such file or directory"):
        await body.receive()
    body.close()


def test_rejects_a_declared_length_over_the_limit_without_reading() -> None:
    with pytest.raises(RequestBodyTooLarge, match="content-length 101"):
        body_of(b"x", declared=101)


@run_async
async def test_rejects_an_undeclared_length_over_the_limit_by_count() -> None:
    body = body_of(b"a" * 51, b"b" * 51)
    with pytest.raises(RequestBodyTooLarge, match="already 102"):
        await body.receive()
    body.close()


@run_async
async def test_rejects_a_body_that_stalls() -> None:
    with pytest.raises(BodyTooSlow, match="received 1 bytes"):
        await body_of(b"a", ends="stalled").receive()


@run_async
async def test_raises_an_error_when_the_client_disconnects() -> None:
    with pytest.raises(ClientClosedRequest):
        await body_of(b"a", ends="disconnected").receive()
