"""A child process's end of the socket to its gateway (`child_process`)."""

from __future__ import annotations

import socket
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from gateway.sneakpeek.frames import FrameReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.sneakpeek.frames import Kind

_READ_BYTES: Final = 1 << 18


@contextmanager
def gateway_socket() -> Iterator[socket.socket]:
    """The socket whose descriptor is the first argument; the body ends when the gateway does."""
    with (
        socket.socket(fileno=int(sys.argv[1])) as connection,
        suppress(ConnectionError, KeyboardInterrupt),
    ):
        yield connection


def received(connection: socket.socket) -> Iterator[tuple[Kind, bytes]]:
    """Messages until the gateway closes its end. Raises ValueError for what is none."""
    reader = FrameReader()
    while data := connection.recv(_READ_BYTES):
        yield from reader.feed(data)
