"""Connections of one worker to the target: kept open between requests, opened as wanted."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import TYPE_CHECKING, Final

from gateway.upstream.pod_connection import PodConnection

if TYPE_CHECKING:
    from load.generator.target_url import TargetUrl

_IDLE_S: Final = 4.0
"""uvicorn closes idle connections after 5 s; ours are not used again when older than this."""


class Connections:
    """Idle connections, the latest used first. How many are open is the caller's to bound."""

    def __init__(self, origin: TargetUrl) -> None:
        self._origin = origin
        self._loop = asyncio.get_running_loop()
        self._idle: deque[PodConnection] = deque()
        self._tls = ssl.create_default_context() if origin.is_encrypted else None

    async def take(self) -> PodConnection:
        """A connection ready for an exchange. Raises OSError where none can be made."""
        fresh_s = self._loop.time() - _IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed and connection.idle_since_s > fresh_s:
                connection.start_exchange()
                return connection
            connection.close()
        _, connection = await self._loop.create_connection(
            PodConnection, self._origin.host, self._origin.port, ssl=self._tls
        )
        connection.start_exchange()
        return connection

    def give_back(self, connection: PodConnection) -> None:
        """Keep a connection if another exchange may follow on it."""
        if connection.can_be_reused:
            connection.idle_since_s = self._loop.time()
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()
