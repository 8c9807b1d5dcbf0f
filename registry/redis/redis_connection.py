"""One shared connection to Redis on which concurrent calls are pipelined.

redis-py costs 57 us of CPU per asyncio call, its connection without the pool 29 us, this 15 us
(`docs/benchmarks.md`). `ReconnectingConnection` opens one on demand, again after a backoff.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import hiredis

from common.backoff import Backoff
from registry.errors import RegistryRefused, RegistryUnavailable
from registry.redis.server_address import ServerAddress, find_server

CONNECT_TIMEOUT_S: Final = 0.8
"""Callers get RegistryUnavailable within a second when Redis is unreachable."""


class RedisConnection(asyncio.Protocol):
    """A connected socket; replies arrive in the order of the calls."""

    def __init__(self, on_message: Callable[[bytes], None] | None = None) -> None:
        self._reader = hiredis.Reader()
        self._callbacks: deque[Callable[[Any], None]] = deque()
        """One per reply that has not arrived."""
        self._transport: asyncio.Transport | None = None
        self._on_message = on_message
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls, address: ServerAddress, on_message: Callable[[bytes], None] | None = None
    ) -> "RedisConnection":
        """Connect and authenticate. Raises RegistryUnavailable within `CONNECT_TIMEOUT_S`.

        `on_message` gets the payload of every message published to a subscribed channel.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if address.path:
                    _, connection = await loop.create_unix_connection(
                        lambda: cls(on_message), address.path
                    )
                else:
                    _, connection = await loop.create_connection(
                        lambda: cls(on_message),
                        address.host,
                        address.port,
                        ssl=_tls_context(address),
                    )
                try:
                    await connection._authenticate(address)
                except BaseException:
                    connection.close()
                    raise
        except (OSError, TimeoutError, hiredis.HiredisError) as error:
            where = address.path or f"{address.host}:{address.port}"
            raise RegistryUnavailable(f"Redis at {where} cannot be reached: {error}") from error
        return connection

    async def _authenticate(self, address: ServerAddress) -> None:
        user = [address.username] if address.username else []
        for password in address.passwords:
            try:
                await self.call("AUTH", *user, password)
                break
            except RegistryRefused as error:
                if error.code != "WRONGPASS" or password == address.passwords[-1]:
                    raise
        if address.database:
            await self.call("SELECT", str(address.database))

    def call(self, *arguments: str | bytes) -> asyncio.Future[Any]:
        """Send one command; the future holds its reply or raises RegistryUnavailable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.call_with_callback(resolver(future), *arguments)
        return future

    def call_with_callback(
        self, on_reply: Callable[[Any], None], *arguments: str | bytes | int
    ) -> None:
        """Send one command; `on_reply` gets its reply, or a RegistryUnavailable in its place."""
        if self._transport is None or self._transport.is_closing():
            on_reply(RegistryUnavailable("the connection to Redis is closed"))
            return
        self._callbacks.append(on_reply)
        self._transport.write(hiredis.pack_command(arguments))

    def call_transaction(
        self, on_reply: Callable[[Any], None], *commands: Sequence[str | bytes | int]
    ) -> None:
        """Send commands that Redis runs without commands of other clients in between.

        `on_reply` gets the list of their replies, or in its place a RegistryUnavailable: the first
        error of any of them.
        """
        if self._transport is None or self._transport.is_closing():
            on_reply(RegistryUnavailable("the connection to Redis is closed"))
            return
        errors: list[RegistryUnavailable] = []

        def on_queued(reply: Any) -> None:
            if isinstance(reply, RegistryUnavailable):
                errors.append(reply)

        def on_executed(reply: Any) -> None:
            if isinstance(reply, list):
                refused = (each for each in reply if isinstance(each, hiredis.ReplyError))
                errors.extend(RegistryRefused(str(each)) for each in refused)
            on_reply(errors[0] if errors else reply)

        sent = (("MULTI",), *commands, ("EXEC",))
        self._callbacks.extend([on_queued] * (len(sent) - 1))
        self._callbacks.append(on_executed)
        self._transport.write(b"".join(hiredis.pack_command(tuple(each)) for each in sent))

    def close(self) -> None:
        """Drop the connection; calls in progress fail."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def wait_closed(self) -> None:
        """Return when the connection has ended, for whatever reason."""
        await asyncio.shield(self._closed)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._deliver(reply)
        except hiredis.ProtocolError:
            self.close()

    def _deliver(self, reply: Any) -> None:
        if self._on_message is not None and isinstance(reply, list) and reply[0] == b"message":
            self._on_message(reply[2])
            return
        if not self._callbacks:
            self.close()  # an error without a call, such as too many clients
            return
        on_reply = self._callbacks.popleft()
        if isinstance(reply, hiredis.ReplyError):
            on_reply(RegistryRefused(str(reply)))
        else:
            on_reply(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        error = RegistryUnavailable(f"the connection to Redis was lost: {exc or 'closed'}")
        while self._callbacks:
            self._callbacks.popleft()(error)
        if not self._closed.done():
            self._closed.set_result(None)


def _tls_context(address: ServerAddress) -> ssl.SSLContext | None:
    """Raises OSError for authorities that cannot be read."""
    if not address.use_tls:
        return None
    return ssl.create_default_context(cafile=address.authorities_file or None)


def resolver(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    """A callback that resolves the future, with an error where it gets a RegistryUnavailable."""

    def resolve(result: Any) -> None:
        if future.done():
            return
        if isinstance(result, RegistryUnavailable):
            future.set_exception(result)
        else:
            future.set_result(result)

    return resolve


_BACKOFF: Final = Backoff(initial_s=0.05, max_s=1.0)


class ReconnectingConnection:
    """One connection at a time. During the backoff after a failure, calls fail at once."""

    def __init__(
        self, url: str, routing_key: str, prepare: Callable[[RedisConnection], Awaitable[object]]
    ) -> None:
        """`prepare` runs on every new connection before its first use."""
        self._url = url
        self._routing_key = routing_key
        self._prepare = prepare
        self._connection: RedisConnection | None = None
        self._connecting = asyncio.Lock()
        self._failures = 0
        self._retry_at_s = 0.0

    @property
    def current(self) -> RedisConnection | None:
        """The open connection, if there is one."""
        connection = self._connection
        return connection if connection is not None and connection.is_open else None

    def check_backoff(self) -> None:
        """Raise RegistryUnavailable during the backoff."""
        if time.monotonic() < self._retry_at_s:
            raise RegistryUnavailable("Redis is unavailable; the next attempt is after a backoff")

    def back_off(self) -> None:
        """Make no new connection for a while, after a failure."""
        self._failures += 1
        self._retry_at_s = time.monotonic() + _BACKOFF.pause_s(self._failures)

    async def connect(self, timeout_s: float) -> RedisConnection:
        """The open connection, else a new one. Raises RegistryUnavailable."""
        async with self._connecting:
            if self.current is not None:
                return self.current
            self.check_backoff()
            try:
                self._connection = await self._open(timeout_s)
            except RegistryUnavailable:
                self.back_off()
                raise
            self._failures = 0
            return self._connection

    async def _open(self, timeout_s: float) -> RedisConnection:
        address = await find_server(self._url, self._routing_key)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await RedisConnection.open(address)
                try:
                    await self._prepare(connection)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError as error:
            raise reply_timeout(timeout_s) from error
        return connection

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()


def reply_timeout(timeout_s: float) -> RegistryUnavailable:
    """The error for a reply that did not arrive in time."""
    return RegistryUnavailable(f"Redis did not reply within {timeout_s:g} s")
