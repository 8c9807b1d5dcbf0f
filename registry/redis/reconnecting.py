"""A connection to Redis that opens on demand and reopens after an exponential backoff."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from registry.backoff import Backoff
from registry.errors import RegistryUnavailable
from registry.redis.redis_connection import RedisConnection
from registry.redis.server_address import find_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
