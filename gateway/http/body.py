"""A request's body: counted while it arrives, and buffered while it is small enough to resend."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from gateway.errors import BadRequest, BodyTooSlow, RequestBodyTooLarge
from gateway.http.openai import find_model_field

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_MODEL_FIELD_BYTES: Final = 4096
"""First bytes of an OpenAI body, which nearly always contain `model`; searched before the rest."""
_MAX_CHUNKS: Final = 512


@dataclass(frozen=True, slots=True)
class BodyLimits:
    max_bytes: int
    buffer_bytes: int
    """Bodies up to this size stay in memory until the response, so they can be resent."""
    timeout_s: float
    """Maximum time between two parts of a body."""


class BodySource(Protocol):
    """Where a body comes from: a client's connection."""

    is_complete: bool
    """True once the end of the body was received."""

    def take_chunks(self) -> list[bytes]:
        """Chunks received since the last call."""

    async def receive_chunks(self) -> list[bytes]:
        """Wait for more, the end or an interruption. Raises ClientClosedRequest."""

    def interrupt(self) -> None:
        """Make `receive_chunks` return now, even without chunks."""


class IncomingBody:
    """The body of one request. `buffered` has its beginning, or all of it once `is_complete`.

    Chunks are kept as received: joining 200 KB costs about as much as forwarding them.
    """

    def __init__(self, source: BodySource, content_length: int | None, limits: BodyLimits) -> None:
        self._source = source
        self._limits = limits
        self.content_length = content_length
        self.buffered: list[bytes] = []
        self.received_bytes = 0
        self.is_complete = False
        self.is_resendable = True
        """False once a part was streamed to a pod, since that part was not kept."""
        if content_length is not None and content_length > limits.max_bytes:
            raise self._too_large(f"content-length {content_length}")

    @property
    def has_started(self) -> bool:
        """True once the first byte or the end was received."""
        return self.received_bytes > 0 or self.is_complete

    def buffer_received(self) -> bool:
        """Buffer the body if all of it was received; returns whether it was.

        Raises RequestBodyTooLarge.
        """
        if self._source.is_complete:
            self.buffered += self._count(self._source.take_chunks())
        return self.is_complete

    async def buffer(self) -> None:
        """Buffer the body until it is complete or longer than the buffer limit.

        The first chunk has no timeout here: `RequestCancellation` has a timer for it already.
        Raises BodyTooSlow, RequestBodyTooLarge, ClientClosedRequest.
        """
        self.buffered += self._count(await self._source.receive_chunks())
        while not self.is_complete and self.received_bytes <= self._limits.buffer_bytes:
            self.buffered += await self._receive()

    async def stream_rest(self) -> AsyncIterator[bytes]:
        """Chunks after `buffered`; an empty one after each interruption. Callable only once."""
        self.is_resendable = False
        while not self.is_complete:
            for chunk in await self._receive() or (b"",):
                yield chunk

    def interrupt(self) -> None:
        """Make `stream_rest` yield an empty chunk now."""
        self._source.interrupt()

    async def read_model_field(self) -> str:
        """The `model` that an OpenAI body names; the bytes read stay buffered for the pod.

        Raises BadRequest if there is none within the buffer limit.
        """
        while not self.is_complete and self.received_bytes < _MODEL_FIELD_BYTES:
            self.buffered += await self._receive()
        name = self._find_model_field()
        if name is None and not self.is_complete:
            await self.buffer()
            name = await asyncio.to_thread(self._find_model_field)  # searches up to 1 MB
        if name is None:
            raise BadRequest(
                "the body must name a 'model' within its first bytes; searched "
                f"{self.received_bytes} bytes"
            )
        return name

    def _find_model_field(self) -> str | None:
        return find_model_field(b"".join(self.buffered))

    async def _receive(self) -> list[bytes]:
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                chunks = await self._source.receive_chunks()
        except TimeoutError:
            raise self.timeout_error() from None
        return self._count(chunks)

    def timeout_error(self) -> BodyTooSlow:
        return BodyTooSlow(
            f"no part of the body was received for {self._limits.timeout_s:g} s; "
            f"received {self.received_bytes} bytes"
        )

    def _count(self, chunks: list[bytes]) -> list[bytes]:
        for chunk in chunks:
            self.received_bytes += len(chunk)
        if len(self.buffered) > _MAX_CHUNKS:  # a body in small packets
            self.buffered = [b"".join(self.buffered)]
        if self.received_bytes > self._limits.max_bytes:
            raise self._too_large(f"already {self.received_bytes} bytes")
        self.is_complete = self._source.is_complete
        return chunks

    def _too_large(self, seen: str) -> RequestBodyTooLarge:
        return RequestBodyTooLarge(
            f"the body may have up to {self._limits.max_bytes} bytes (--max-body-bytes), was {seen}"
        )
