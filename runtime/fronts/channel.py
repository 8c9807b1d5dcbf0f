"""Unix sockets between front and device process: messages in order, with descriptors.

Small messages go through a stream, many of them in one call of the kernel: a socket's own methods
let go of Python's lock, and get it back from the device's thread milliseconds later. Large ones go
through memory that both map; the kernel frees it with its last mapping, also of killed processes.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from runtime.fronts.messages import Message, decode, encode
from runtime.serving.shared_block import map_block, sealed_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runtime.fronts.messages import Kind
    from runtime.wire.tensors import Tensor

MAX_INLINE_BYTES: Final = 64 * 1024
"""Longest message through the stream."""
MAX_DESCRIPTORS: Final = 4
_FRAME: Final = struct.Struct("<IB")
"""Bytes of the message, 0 if it is in memory; descriptors that have been sent before."""
_WITH_DESCRIPTORS: Final = b"d"


@dataclass(frozen=True, slots=True)
class ChannelSockets:
    """One end."""

    stream: socket.socket
    descriptors: socket.socket
    """Of type SOCK_SEQPACKET."""


class Channel(asyncio.Protocol):
    """One end. Belongs to the event loop that opens it."""

    def __init__(
        self, on_message: Callable[[Message], None], on_closed: Callable[[], None]
    ) -> None:
        """`on_closed` is called once, when the other end is closed or this one is."""
        self._on_message = on_message
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._descriptors: socket.socket | None = None
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._received = b""

    async def open(self, sockets: ChannelSockets) -> None:
        """Own the sockets from now on."""
        loop = asyncio.get_running_loop()
        self._descriptors = sockets.descriptors
        self._descriptors.setblocking(False)
        sockets.stream.setblocking(False)
        await loop.connect_accepted_socket(lambda: self, sockets.stream)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def send(
        self,
        kind: Kind,
        fields: Mapping[str, Any],
        tensors: Sequence[Tensor] = (),
        descriptors: tuple[int, ...] = (),
    ) -> None:
        """Send a message; owns the descriptors. A channel that is not open drops it.

        Raises OSError if there is no memory or descriptor for it.
        """
        if self._transport is None:
            _close(descriptors)
            return
        parts = encode(kind, fields, tensors)
        size = sum(map(len, parts))
        if size > MAX_INLINE_BYTES:
            descriptors = (sealed_copy(parts), *descriptors)
            size, parts = 0, []
        content = b"".join([_FRAME.pack(size, len(descriptors)), *parts])
        if self._unsent or not self._send_descriptors(descriptors):
            self._unsent.append((content, descriptors))
        else:
            self._transport.write(content)

    # Descriptors, which are with the other end before the message that they belong to

    def _send_descriptors(self, descriptors: tuple[int, ...]) -> bool:
        """Whether that is done; else it goes on once the other end has read some."""
        if not descriptors or self._descriptors is None:
            return True
        try:
            socket.send_fds(self._descriptors, [_WITH_DESCRIPTORS], descriptors)
        except BlockingIOError:
            loop = asyncio.get_running_loop()
            loop.add_writer(self._descriptors.fileno(), self._send_rest)
            return False
        except OSError:  # the other end is closed, as the stream will tell
            pass
        _close(descriptors)
        return True

    def _send_rest(self) -> None:
        if self._transport is None or self._descriptors is None:
            return
        asyncio.get_running_loop().remove_writer(self._descriptors.fileno())
        while self._unsent:
            content, descriptors = self._unsent[0]
            if not self._send_descriptors(descriptors):
                return
            self._unsent.popleft()
            self._transport.write(content)

    def _receive_descriptors(self) -> tuple[int, ...]:
        """Those of the next message that has some; raises OSError."""
        if self._descriptors is None:
            raise ConnectionResetError("the channel is closed")
        room = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
        _, ancillary, flags, _ = self._descriptors.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
        found = array.array("i")
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
        if flags & socket.MSG_CTRUNC:
            _close(found)
            raise OSError("this process has no descriptor left")
        return tuple(found)

    # Of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        position = 0
        while position + _FRAME.size <= len(received):
            size, descriptors = _FRAME.unpack_from(received, position)
            end = position + _FRAME.size + size
            if end > len(received):
                break
            try:
                message = self._message(received[position + _FRAME.size : end], descriptors)
            except OSError:
                self.close()
                return
            self._on_message(message)
            position = end
        self._received = received[position:]

    def _message(self, content: bytes, number: int) -> Message:
        descriptors = self._receive_descriptors() if number else ()
        if content:
            return decode(content, descriptors)
        first, *rest = descriptors
        try:
            return decode(memoryview(map_block(first)), tuple(rest))
        finally:
            os.close(first)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._descriptors is not None:
            asyncio.get_running_loop().remove_writer(self._descriptors.fileno())
            self._descriptors.close()
            self._descriptors = None
        while self._unsent:
            _close(self._unsent.popleft()[1])
        self._on_closed()


def socket_pair() -> tuple[ChannelSockets, ChannelSockets]:
    """Both ends of a channel."""
    streams = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    descriptors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, theirs = map(ChannelSockets, streams, descriptors)
    return ours, theirs


def _close(descriptors: Sequence[int] | array.array[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
