"""Accepts clients' connections, and begins their requests, some in each turn of the event loop.

libuv accepts one connection per turn, beside the reads of all open ones: with 512 busy clients
hundreds of new ones waited for seconds. It then takes three more turns to open and read it: here
a request that came with its connection is begun in the next turn. A turn reads all connections
that have sent something: with 512 busy clients on one core it took 170 ms, and a new connection
needs several turns until its first response. So a turn accepts 32 connections and begins 16
requests.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from common.tls import HANDSHAKE_TIMEOUT_S

CreateProtocol = Callable[[], Any]
"""Of a protocol with `receive_first`, as `GatewayProtocol`."""
Opening = Coroutine[Any, Any, Any]


class Startable(Protocol):
    def start(self) -> None: ...


logger = logging.getLogger(__name__)

_MAX_BATCH: Final = 32
"""Connections accepted in one turn, before open ones are read again; about 5 ms of a core."""
_FIRST_BYTES: Final = 16 * 1024
_EXHAUSTED_PAUSE_S: Final = 0.2
"""Without free file descriptors, accepting again at once would fail again."""
_LAST_DATA_RECV: Final = 52
"""Offset of `tcpi_last_data_recv`, in milliseconds, in Linux' `struct tcp_info`."""
MAX_PER_TURN: Final = 16
"""About 3 ms of a core; the turn's own cost, its system call, is a hundredth of that."""


class Listener:
    """One listening socket. In place of the `asyncio.Server` that uvicorn closes at its end."""

    def __init__(
        self,
        listening: socket.socket,
        create_protocol: CreateProtocol,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        listening.setblocking(False)
        self.sockets = (listening,)
        self._socket = listening
        self._create_protocol = create_protocol
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
        for _ in range(_MAX_BATCH):
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
            try:
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open(connection)
            except OSError:  # the client has disconnected
                connection.close()

    def _open(self, connection: socket.socket) -> None:
        if self._tls is None:
            self._open_at_once(connection)
            return
        task = self._loop.create_task(self._open_with_tls(connection, self._tls))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _open_at_once(self, connection: socket.socket) -> None:
        """The protocol's `connection_made` is called in the next turn; no task waits for it."""
        data = b""
        with contextlib.suppress(OSError):  # of a broken one, which its transport will see
            data = connection.recv(_FIRST_BYTES)
        unread_s = _unread_s(connection) if data else 0.0
        protocol = self._create_protocol()
        opening = self._loop.connect_accepted_socket(lambda: protocol, connection)
        is_made: asyncio.Future[None] = opening.send(None)
        is_made.add_done_callback(partial(_finish, opening))
        if data:  # after `connection_made`, in the same turn
            self._loop.call_soon(protocol.receive_first, data, unread_s)

    async def _open_with_tls(self, connection: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._create_protocol, connection, ssl=tls, ssl_handshake_timeout=self._handshake_s
            )
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


def _finish(opening: Opening, _: object) -> None:
    """Run an opening's last step: it must not be dropped, which would close its connection."""
    with contextlib.suppress(StopIteration, RuntimeError):  # RuntimeError: closed meanwhile
        opening.send(None)


def _unread_s(connection: socket.socket) -> float:
    """Seconds since the connection's first bytes, or since it was opened without any."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECV + 4)
        milliseconds: int = struct.unpack_from("=I", info, _LAST_DATA_RECV)[0]
    except (OSError, struct.error):
        return 0.0
    return milliseconds / 1000


class RequestStarts:
    """Of one lane: first requests of connections have one, all others another."""

    def __init__(self) -> None:
        self._waiting: deque[Startable] = deque()
        self._left = MAX_PER_TURN
        self._is_scheduled = False

    def begin(self, request: Startable, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to serve the request, in this turn or a later one; in the order of calls."""
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._next_turn, loop)
        if self._left:
            self._left -= 1
            request.start()
        else:
            self._waiting.append(request)

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting
        count = min(len(waiting), MAX_PER_TURN)
        self._left = MAX_PER_TURN - count
        self._is_scheduled = count > 0
        if count:  # before they start: one may fail
            loop.call_soon(self._next_turn, loop)
        for _ in range(count):
            waiting.popleft().start()


class ConnectionStarts:
    """The two lanes of one event loop: a flood of either kind leaves the other its share."""

    def __init__(self) -> None:
        self.first = RequestStarts()
        self.later = RequestStarts()


LINGER_S: Final = 30.0
"""For which bytes of a client whose request was refused half-way are read and dropped, however many
they are: many clients send all of a body before they read. As nginx' `lingering_time`."""
LINGER_PAUSE_S: Final = 5.0
"""Without a byte of it, after which the connection is closed. As nginx' `lingering_timeout`."""


class Lingering:
    """Drops what a refused client still sends, and closes the connection once the client does.

    Closing with unread bytes would reset the connection, and the client might lose the response
    (RFC 9112, section 9.6).
    """

    def __init__(
        self, transport: asyncio.Transport, flow: FlowControl, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._flow = flow
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        flow.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        self._dropped_s = loop.time()
        self._end_s = self._dropped_s + LINGER_S
        self._check()

    def _check(self) -> None:
        now_s = self._loop.time()
        rest_s = min(self._end_s, self._dropped_s + LINGER_PAUSE_S) - now_s
        if rest_s <= 0:
            self._transport.close()
        else:
            self._timer = self._loop.call_later(rest_s, self._check)

    def drop(self) -> None:
        """Drop what was read, and read on in the next turn of the loop.

        libuv reads a connection up to 32 times in a turn: eight such clients made others wait for
        0.25 s.
        """
        self._dropped_s = self._loop.time()
        self._flow.pause_reading()
        self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._flow.resume_reading()

    def cancel(self) -> None:
        """The connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
