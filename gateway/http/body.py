"""A request's body: received completely, within its limits, before a pod's slot is taken.

A client that sends slowly occupies no pod, and every body can be sent again.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from common.content_coding import ACCEPTED, CODINGS, unpack
from gateway.errors import (
    BadRequest,
    BodiesFull,
    BodyTooSlow,
    RequestBodyTooLarge,
    UnsupportedCoding,
)
from gateway.http.openai import find_model_field

UNCOUNTED_BYTES: Final = 64 << 10
"""The beginning of each body, which connections bound: small requests are served even when
large ones have filled the budget."""


class HeldBodies:
    """Bytes that all requests' bodies occupy in memory, with a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held_bytes = 0

    def check(self, more: int) -> None:
        """Raises BodiesFull for a body of this length, before it is read."""
        if self.held_bytes + more > self._limit:
            raise BodiesFull(
                f"the gateway holds {self.held_bytes} bytes of other requests' bodies; {more} more"
                f" exceed {self._limit} (--held-body-bytes)",
                retry_after_s=1.0,
            )

    def take(self, more: int) -> None:
        self.check(more)
        self.held_bytes += more

    def may_take(self, more: int) -> bool:
        """Take it, if there is so much."""
        is_free = self.held_bytes + more <= self._limit
        if is_free:
            self.held_bytes += more
        return is_free

    def release(self, held_bytes: int) -> None:
        self.held_bytes -= held_bytes


_MODEL_FIELD_BYTES: Final = 4096
"""First bytes of an OpenAI body, which nearly always contain `model`; searched before the rest."""
_MAX_CHUNKS: Final = 512
PIECE_BYTES: Final = 1 << 20
"""Sent at once: with TLS that takes 3 ms."""
BUFFER_BYTES: Final = 1 << 20
"""What is looked at of a body; most requests of texts and rows are shorter."""
MIN_BODY_RATE: Final = 1024
"""Bytes per second of a body, on average after its first pause: slower clients only hold memory."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    max_bytes: int
    buffer_bytes: int
    """What is searched for the model's name."""
    timeout_s: float
    """Maximum time between two parts of a body."""
    min_rate: int = 0
    """Bytes per second that must arrive on average, from `timeout_s` on; 0: any."""
    max_bytes_from: str = "--max-body-bytes"
    """What sets `max_bytes`, for messages."""


class BodySource(Protocol):
    """Where a body comes from: a client's connection."""

    is_complete: bool
    """True once the end of the body was received."""

    def take_chunks(self) -> list[bytes]:
        """Chunks received since the last call."""

    async def receive_chunks(self) -> list[bytes]:
        """Wait for more or the end. Raises ClientClosedRequest."""


class IncomingBody:
    """The body of one request; `buffered` has what was received.

    Chunks are kept as received: joining 200 KB costs about as much as forwarding them.
    """

    received_bytes = 0
    is_complete = False
    _held_bytes = 0
    """Counted in `held`."""
    _begun_s: float | None = None
    _joined = 0
    """Chunks at the beginning of `buffered` that are not joined with later ones."""

    def __init__(
        self, source: BodySource, content_length: int | None, limits: BodyLimits, held: HeldBodies
    ) -> None:
        """Raises RequestBodyTooLarge, BodiesFull."""
        self._source = source
        self._limits = limits
        self._held = held
        self._uncounted_bytes = min(UNCOUNTED_BYTES, limits.max_bytes)
        self.buffered: list[bytes] = []
        if content_length is not None and content_length > self._uncounted_bytes:
            if content_length > limits.max_bytes:
                raise self._too_large(f"content-length {content_length}")
            held.check(content_length)

    def receive_now(self) -> bool:
        """Take the body if all of it has arrived; returns whether it has.

        Raises RequestBodyTooLarge, BodiesFull.
        """
        if self._source.is_complete:
            self.buffered += self._count(self._source.take_chunks())
        return self.is_complete

    async def receive(self) -> None:
        """Receive the whole body.

        Raises BodyTooSlow, RequestBodyTooLarge, BodiesFull, ClientClosedRequest.
        """
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                chunks = await self._source.receive_chunks()
        except TimeoutError:
            raise self.timeout_error() from None
        self.buffered += self._count(chunks)
        await self.receive_rest()

    async def receive_rest(self) -> None:
        """Receive what is missing; each part has a timeout. Raises as `receive`."""
        while not self.is_complete:
            self.buffered += await self._receive()

    def pieces(self) -> Iterator[list[bytes]]:
        """The chunks of the whole body, in parts to be sent one after the other."""
        if self.received_bytes <= PIECE_BYTES:
            yield self.buffered
            return
        piece: list[bytes] = []
        size = 0
        for chunk in self.buffered:
            piece.append(chunk)
            size += len(chunk)
            if size >= PIECE_BYTES:
                yield piece
                piece, size = [], 0
        if piece:
            yield piece

    def close(self) -> None:
        """Free the body, and its part of the budget."""
        self.buffered = []
        if self._held_bytes:
            self._held.release(self._held_bytes)
            self._held_bytes = 0

    async def read_model_field(self, coding: str = "") -> str:
        """The `model` that an OpenAI body names; the bytes read stay buffered for the pod.

        `coding`: of its `content-encoding`. Raises BadRequest if there is none within the buffer
        limit, UnsupportedCoding.
        """
        if coding and coding not in CODINGS:
            raise UnsupportedCoding(
                f"header content-encoding must be absent or one of identity, {ACCEPTED}, was"
                f" {coding[:40]!r}"
            )
        name = None
        if not coding:
            while not self.is_complete and self.received_bytes < _MODEL_FIELD_BYTES:
                self.buffered += await self._receive()
            name = self._find_model_field("")
        if name is None and (coding or not self.is_complete):
            while not self.is_complete and self.received_bytes <= self._limits.buffer_bytes:
                self.buffered += await self._receive()
            name = await asyncio.to_thread(self._find_model_field, coding)  # searches up to 1 MB
        if name is None:
            raise BadRequest(
                "the body must name a 'model' within its first bytes; searched "
                f"{self._limits.buffer_bytes if coding else self.received_bytes} bytes"
            )
        return name

    def _find_model_field(self, coding: str) -> str | None:
        beginning = b"".join(self.buffered)
        if coding:
            try:
                beginning = unpack(beginning, coding, self._limits.buffer_bytes, is_prefix=True)
            except ValueError as error:
                raise BadRequest(f"the body {error}, as header content-encoding says") from None
        return find_model_field(beginning, is_whole=self.is_complete and not coding)

    async def _receive(self) -> list[bytes]:
        limits, now_s = self._limits, asyncio.get_running_loop().time()
        if self._begun_s is None:
            self._begun_s = now_s
        until_s = now_s + limits.timeout_s
        if limits.min_rate:
            slowest_s = limits.timeout_s + self.received_bytes / limits.min_rate
            until_s = min(until_s, self._begun_s + slowest_s)
        try:
            async with asyncio.timeout_at(until_s):
                chunks = await self._source.receive_chunks()
        except TimeoutError:
            raise self.timeout_error() from None
        return self._count(chunks)

    def timeout_error(self) -> BodyTooSlow:
        limits = self._limits
        return BodyTooSlow(
            f"no part of the body was received for {limits.timeout_s:g} s, or fewer than"
            f" {limits.min_rate} bytes per second; received {self.received_bytes} bytes"
        )

    def _count(self, chunks: list[bytes]) -> list[bytes]:
        for chunk in chunks:
            self.received_bytes += len(chunk)
        if self.received_bytes > self._uncounted_bytes:
            self._count_large()
        self.is_complete = self._source.is_complete
        return chunks

    def _count_large(self) -> None:
        if self.received_bytes > self._limits.max_bytes:
            raise self._too_large(f"already {self.received_bytes} bytes")
        more = self.received_bytes - self._held_bytes
        self._held.take(more)
        self._held_bytes += more
        latest = self.buffered[self._joined :]
        if len(latest) > _MAX_CHUNKS:
            if sum(map(len, latest)) < PIECE_BYTES:  # a body in small packets
                self.buffered[self._joined :] = [b"".join(latest)]
            self._joined = len(self.buffered)

    def _too_large(self, seen: str) -> RequestBodyTooLarge:
        return RequestBodyTooLarge(
            f"the body may have up to {self._limits.max_bytes} bytes"
            f" ({self._limits.max_bytes_from}), was {seen}"
        )
