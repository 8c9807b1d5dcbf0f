"""Accepts clients' connections: all that wait, in one turn of the event loop.

libuv accepts one connection per turn, beside the reads of all open ones: with 512 busy clients a
turn takes 60 ms, and hundreds of new ones waited for seconds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

from registry.tls import HANDSHAKE_TIMEOUT_S

logger = logging.getLogger(__name__)

_MAX_BATCH: Final = 256
"""Connections accepted in one turn, before open ones are read again."""
_EXHAUSTED_PAUSE_S: Final = 0.2
"""Without free file descriptors, accepting again at once would fail again."""
_LAST_DATA_RECV: Final = 52
"""Offset of `tcpi_last_data_recv`, in milliseconds, in Linux' `struct tcp_info`."""


class Listener:
    """One listening socket. In place of the `asyncio.Server` that uvicorn closes at its end."""

    def __init__(
        self,
        listening: socket.socket,
        create_protocol: Callable[[], asyncio.Protocol],
        on_accepted: Callable[[float], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`on_accepted` is called with the age in seconds of each batch's oldest connection."""
        listening.setblocking(False)
        self.sockets = (listening,)
        self._socket = listening
        self._create_protocol = create_protocol
        self._on_accepted = on_accepted
        self._tls = tls
        self._handshake_s = HANDSHAKE_TIMEOUT_S if tls else None
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._resume()

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for number in range(_MAX_BATCH):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                logger.warning("connections wait", extra={"error": error})
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(_EXHAUSTED_PAUSE_S, self._resume)
                return
            if number == 0:
                self._on_accepted(_unread_s(connection))
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._create_protocol, connection,
                ssl=self._tls, ssl_handshake_timeout=self._handshake_s,
            )  # fmt: skip
        except OSError:  # the client has disconnected, or speaks no TLS
            connection.close()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    async def wait_closed(self) -> None:
        if self._opening:
            await asyncio.wait(self._opening)


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """A listening socket per address of the host. Raises OSError."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listening: list[socket.socket] = []
    for family, _, _, _, address in dict.fromkeys(found):
        if port == 0 and listening:
            break
        listening.append(socket.create_server(address[:2], family=family, backlog=backlog))
    return listening


def _unread_s(connection: socket.socket) -> float:
    """Seconds since the connection's first bytes, or since it was opened without any."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECV + 4)
        milliseconds: int = struct.unpack_from("=I", info, _LAST_DATA_RECV)[0]
    except (OSError, struct.error):
        return 0.0
    return milliseconds / 1000
