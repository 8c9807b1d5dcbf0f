"""A request's body: counted while it streams, held while it is small enough to be sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from gateway.errors import BodyTooLarge, BodyTooSlow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, MutableMapping

    from gateway.settings import GatewaySettings

Receive = Callable[[], Awaitable["MutableMapping[str, Any]"]]


class ClientGone(Exception):
    """The client closed its connection: nobody waits for the answer."""


class RequestBody:
    """The body of one request. `held` has its beginning, or all of it once `is_whole`.

    It stays in the pieces it came in: to join 200 KB costs about as much as to forward them.
    """

    def __init__(self, receive: Receive, declared: int | None, settings: GatewaySettings) -> None:
        self._receive = receive
        self._most = settings.max_body_bytes
        self._timeout_s = settings.body_timeout
        self._hold_most = settings.buffer_bytes
        self._count = 0
        self._streamed = False
        self.declared = declared
        self.held: list[bytes] = []
        self.is_whole = False
        if declared is not None and declared > self._most:
            raise self._too_large(f"content-length {declared}")

    @property
    def can_be_sent(self) -> bool:
        """Whether the whole body can (still) be sent to a pod: what was streamed is gone."""
        return not self._streamed

    @property
    def seen_bytes(self) -> int:
        """How much of the body came; its length once `is_whole`."""
        return self._count

    @property
    def has_begun(self) -> bool:
        """Whether anything of the body came."""
        return self._count > 0 or self.is_whole

    async def hold(self) -> None:
        """Take in the body until it is whole or too long to be held.

        The first piece has no time limit here: whoever runs the request has a timer already.
        """
        self.held.append(self._take(await self._receive()))  # mostly all of it, and here already
        while not self.is_whole and self._count <= self._hold_most:
            self.held.append(await self._next())

    async def rest(self) -> AsyncIterator[bytes]:
        """What comes after `held`; it can be had once."""
        self._streamed = True
        while not self.is_whole:
            yield await self._next()

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await self._receive()
        except TimeoutError:
            raise self.too_slow() from None
        return self._take(message)

    def too_slow(self) -> BodyTooSlow:
        """The error of a body that stopped coming."""
        return BodyTooSlow(
            f"nothing of the body came for {self._timeout_s:g} s, {self._count} bytes are here"
        )

    def _take(self, message: MutableMapping[str, Any]) -> bytes:
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk: bytes = message.get("body", b"")
        self._count += len(chunk)
        if self._count > self._most:
            raise self._too_large(f"already {self._count} bytes")
        self.is_whole = not message.get("more_body", False)
        return chunk

    def _too_large(self, seen: str) -> BodyTooLarge:
        return BodyTooLarge(f"the body may have {self._most} bytes (--max-body-bytes), was {seen}")
