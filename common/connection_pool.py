"""Connections to servers, kept by address between exchanges."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from common.http_connection import Connection, NotConnected

CONNECT_TIMEOUT_S: Final = 2.0
MAX_IDLE_S: Final = 30.0
"""Pods and gateways close idle connections after 65 s."""
MAX_IDLE: Final = 256

Kind = TypeVar("Kind", bound=Connection)


class ConnectionPool(Generic[Kind]):
    """Belongs to one event loop."""

    def __init__(
        self,
        create: Callable[[], Kind],
        options: Mapping[str, Any],
        *,
        connect_timeout_s: float | None,
        max_idle_s: float,
        max_idle: int,
    ) -> None:
        """Limits of the connections.

        Args:
            create: a connection that is not open yet.
            options: of the loop's `create_connection`, such as TLS.
            connect_timeout_s: of a connection, TLS included.
            max_idle_s: well below the time after which the servers close idle connections.
            max_idle: connections kept for each address.
        """
        self._create = create
        self._options = options
        self._connect_timeout_s = connect_timeout_s
        self._max_idle_s, self._max_idle = max_idle_s, max_idle
        self._idle: dict[str, deque[Kind]] = {}

    async def take(self, address: str) -> Kind:
        """A connection that was kept, or a new one. Raises NotConnected."""
        return self.take_idle(address) or await self.connect(address)

    def take_idle(self, address: str) -> Kind | None:
        """An open connection, if there is one; the one used last."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            oldest_s = connection.loop.time() - self._max_idle_s
            if not connection.is_closed and connection.idle_since_s > oldest_s:
                return connection
            connection.close()
        return None

    async def connect(self, address: str) -> Kind:
        """A new connection; raises NotConnected. Closes others that have been idle too long."""
        loop = asyncio.get_running_loop()
        self.close_idle_since(loop.time() - self._max_idle_s)
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    self._create, host.strip("[]"), int(port), **self._options
                )
        except (OSError, TimeoutError, ValueError, OverflowError) as error:  # also of an address
            raise NotConnected(f"{address} cannot be reached: {error!r}") from error
        return connection

    def release(self, address: str, connection: Kind) -> None:
        """Keep a connection for another exchange, or close it if it cannot be reused."""
        connection.end()
        if connection.is_closed:
            return
        connection.idle_since_s = connection.loop.time()
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle[address] = deque()
        idle.append(connection)
        if len(idle) > self._max_idle:
            idle.popleft().close()

    def close_idle_since(self, oldest_s: float) -> None:
        """Close connections last used at or before this loop time."""
        for address, idle in list(self._idle.items()):
            while idle and (idle[0].is_closed or idle[0].idle_since_s <= oldest_s):
                idle.popleft().close()
            if not idle:
                del self._idle[address]

    def close(self) -> None:
        """Close what is idle."""
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()
