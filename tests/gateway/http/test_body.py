"""Request bodies: counted, buffered while small, otherwise streamed once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from gateway.errors import BodyTooSlow, RequestBodyTooLarge
from gateway.http.body import BodyLimits, IncomingBody
from gateway.http.client_request import ClientClosedRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LIMITS = BodyLimits(max_bytes=100, buffer_bytes=10, timeout_s=0.02)


@dataclass
class FakeSource:
    """A body that arrives in chunks; `ends`: `whole`, `gone` (disconnect) or `stalls`."""

    remaining: list[bytes]
    ends: str
    is_complete: bool = False

    def take_chunks(self) -> list[bytes]:
        return []

    async def receive_chunks(self) -> list[bytes]:
        if not self.remaining and self.ends == "gone":
            raise ClientClosedRequest
        if not self.remaining:
            await asyncio.Event().wait()
        chunk = self.remaining.pop(0)
        self.is_complete = not self.remaining and self.ends == "whole"
        return [chunk]


def body_of(
    *chunks: bytes, declared: int | None = None, ends: str = "whole"
) -> Callable[[], IncomingBody]:
    return lambda: IncomingBody(FakeSource(list(chunks), ends), declared, LIMITS)


def run(
    create: Callable[[], IncomingBody], use: Callable[[IncomingBody], Coroutine[Any, Any, None]]
) -> None:
    async def inside() -> None:
        await use(create())

    asyncio.run(inside())


def test_buffers_a_small_body_completely() -> None:
    async def use(body: IncomingBody) -> None:
        await body.buffer()
        assert (b"".join(body.buffered), body.is_complete, body.is_resendable) == (
            b"abcd",
            True,
            True,
        )

    run(body_of(b"ab", b"cd"), use)


def test_buffers_the_beginning_of_a_long_body_and_streams_the_rest_once() -> None:
    async def use(body: IncomingBody) -> None:
        await body.buffer()
        assert (b"".join(body.buffered), body.is_complete, body.is_resendable) == (
            b"a" * 12,
            False,
            True,
        )
        assert [chunk async for chunk in body.stream_rest()] == [b"b", b"c"]
        assert not body.is_resendable

    run(body_of(b"a" * 12, b"b", b"c"), use)


def test_a_streamed_body_cannot_be_resent() -> None:
    async def use(body: IncomingBody) -> None:
        await body.buffer()
        async for _ in body.stream_rest():
            pass
        assert not body.is_resendable

    run(body_of(b"a" * 12, b"b"), use)


def test_rejects_a_declared_length_over_the_limit_without_reading() -> None:
    with pytest.raises(RequestBodyTooLarge, match="content-length 101"):
        body_of(b"x", declared=101)()


def test_rejects_an_undeclared_length_over_the_limit_by_count() -> None:
    async def use(body: IncomingBody) -> None:
        await body.buffer()
        with pytest.raises(RequestBodyTooLarge, match="already 102"):
            async for _ in body.stream_rest():
                pass

    run(body_of(b"a" * 51, b"b" * 51), use)


def test_rejects_a_body_that_stalls() -> None:
    async def use(body: IncomingBody) -> None:
        with pytest.raises(BodyTooSlow, match="received 1 bytes"):
            await body.buffer()

    run(body_of(b"a", ends="stalls"), use)


def test_raises_an_error_when_the_client_disconnects() -> None:
    async def use(body: IncomingBody) -> None:
        with pytest.raises(ClientClosedRequest):
            await body.buffer()

    run(body_of(b"a", ends="gone"), use)
