"""A request's body: counted while it streams, held while it is small enough to be sent again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.errors import BodyTooSlow, RequestBodyTooLarge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits that hold for every request body."""

    max_bytes: int
    buffer_bytes: int
    """Bodies up to this size stay in memory until the response, so they can be sent again."""
    timeout_s: float
    """Longest pause inside a body."""


class Source(Protocol):
    """Where a body comes from."""

    is_whole: bool
    """Whether its end came."""

    def pieces(self) -> list[bytes]:
        """What came since the last call."""

    async def more_pieces(self) -> list[bytes]:
        """Wait for more, the end or an interruption. Raises ClientGone."""


class RequestBody:
    """The body of one request. `held` has its beginning, or all of it once `is_whole`.

    It stays in the pieces it came in: to join 200 KB costs about as much as to forward them.
    """

    def __init__(self, source: Source, declared: int | None, limits: BodyLimits) -> None:
        self._source = source
        self._most = limits.max_bytes
        self._timeout_s = limits.timeout_s
        self._hold_most = limits.buffer_bytes
        self._streamed = False
        self.declared = declared
        self.held: list[bytes] = []
        self.seen_bytes = 0
        """How much of the body came; its length once `is_whole`."""
        self.is_whole = False
        if declared is not None and declared > self._most:
            raise self._too_large(f"content-length {declared}")

    @property
    def can_be_sent(self) -> bool:
        """Whether the whole body can (still) be sent to a pod: what was streamed is gone."""
        return not self._streamed

    @property
    def has_begun(self) -> bool:
        """Whether anything of the body came."""
        return self.seen_bytes > 0 or self.is_whole

    def hold_what_is_here(self) -> bool:
        """Take in what came; whether that is all. Raises BodyTooLarge."""
        if self._source.is_whole:
            self.held += self._take(self._source.pieces())
        return self.is_whole

    async def hold_more(self) -> None:
        """Take in the next of the body. Raises BodyTooSlow, BodyTooLarge, ClientGone."""
        self.held += await self._next()

    async def hold(self) -> None:
        """Take in the body until it is whole or too long to be held.

        The first piece has no time limit here: whoever runs the request has a timer already.
        """
        self.held += self._take(await self._source.more_pieces())
        while not self.is_whole and self.seen_bytes <= self._hold_most:
            self.held += await self._next()

    async def rest(self) -> AsyncIterator[bytes]:
        """What comes after `held`, nothing where the source was interrupted; it can be had once."""
        self._streamed = True
        while not self.is_whole:
            for piece in await self._next() or (b"",):
                yield piece

    async def _next(self) -> list[bytes]:
        try:
            async with asyncio.timeout(self._timeout_s):
                pieces = await self._source.more_pieces()
        except TimeoutError:
            raise self.too_slow() from None
        return self._take(pieces)

    def too_slow(self) -> BodyTooSlow:
        """The error of a body that stopped coming."""
        return BodyTooSlow(
            f"nothing of the body came for {self._timeout_s:g} s, {self.seen_bytes} bytes are here"
        )

    def _take(self, pieces: list[bytes]) -> list[bytes]:
        for piece in pieces:
            self.seen_bytes += len(piece)
        if self.seen_bytes > self._most:
            raise self._too_large(f"already {self.seen_bytes} bytes")
        self.is_whole = self._source.is_whole
        return pieces

    def _too_large(self, seen: str) -> RequestBodyTooLarge:
        return RequestBodyTooLarge(
            f"the body may have {self._most} bytes (--max-body-bytes), was {seen}"
        )
