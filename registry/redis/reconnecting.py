"""A client's connection to Redis: made when it is needed, and again after a pause that grows."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from registry.errors import RegistryUnavailable
from registry.redis.redis_connection import RedisConnection
from registry.redis.server_address import resolve

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_PAUSE_FIRST_S = 0.05
_PAUSE_LONGEST_S = 1.0


class ReconnectingConnection:
    """One connection at a time. In the pause after a failure nobody waits for a server away."""

    def __init__(
        self, url: str, routing_key: str, prepare: Callable[[RedisConnection], Awaitable[object]]
    ) -> None:
        """`prepare` is done with every new connection before it is used."""
        self._url = url
        self._routing_key = routing_key
        self._prepare = prepare
        self._connection: RedisConnection | None = None
        self._connecting = asyncio.Lock()
        self._pause_s = _PAUSE_FIRST_S
        self._again_at_s = 0.0

    @property
    def open(self) -> RedisConnection | None:
        """The connection, if there is one now."""
        connection = self._connection
        return connection if connection is not None and connection.is_open else None

    def check_pause(self) -> None:
        """Raise RegistryUnavailable where it is too early to try again."""
        if time.monotonic() < self._again_at_s:
            raise RegistryUnavailable("Redis is away; not asked again yet")

    def pause(self) -> None:
        """It failed: leave the server alone for a while."""
        self._again_at_s = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, _PAUSE_LONGEST_S)

    async def connected(self, timeout_s: float) -> RedisConnection:
        """The connection that is there, else a new one. Raises RegistryUnavailable."""
        async with self._connecting:
            if self.open is not None:
                return self.open
            self.check_pause()
            try:
                self._connection = await self._connect(timeout_s)
            except RegistryUnavailable:
                self.pause()
                raise
            self._pause_s = _PAUSE_FIRST_S
            return self._connection

    async def _connect(self, timeout_s: float) -> RedisConnection:
        address = await resolve(self._url, self._routing_key)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await RedisConnection.open(address)
                try:
                    await self._prepare(connection)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError as error:
            raise too_late(timeout_s) from error
        return connection

    async def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()


def too_late(timeout_s: float) -> RegistryUnavailable:
    """What it means that nothing was answered in time."""
    return RegistryUnavailable(f"Redis did not answer within {timeout_s:g} s")
