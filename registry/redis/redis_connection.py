"""One shared connection to Redis on which concurrent calls are pipelined by themselves.

redis-py costs about 170 us of CPU per asyncio call, this 57 us, which is why the warm path does not
go through it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import hiredis

from registry.errors import RegistryRefused, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from registry.redis.server_address import ServerAddress

CONNECT_TIMEOUT_S: Final = 0.8
"""Callers shall hear within a second that Redis is away."""


class RedisConnection(asyncio.Protocol):
    """A connected socket; replies come back in the order of the calls."""

    def __init__(self, on_message: Callable[[bytes], None] | None = None) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[Callable[[Any], None]] = deque()
        self._transport: asyncio.Transport | None = None
        self._on_message = on_message
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls, address: ServerAddress, on_message: Callable[[bytes], None] | None = None
    ) -> RedisConnection:
        """Connect and authenticate. Raises RegistryUnavailable within `CONNECT_TIMEOUT_S`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: cls(on_message),
                    address.host,
                    address.port,
                    ssl=True if address.use_tls else None,
                )
                try:
                    await connection._greet(address)
                except BaseException:
                    connection.close()
                    raise
        except (OSError, TimeoutError, hiredis.HiredisError) as error:
            raise RegistryUnavailable(
                f"Redis at {address.host}:{address.port} cannot be reached: {error}"
            ) from error
        return connection

    async def _greet(self, address: ServerAddress) -> None:
        if address.password:
            user = [address.username] if address.username else []
            await self.call("AUTH", *user, address.password)
        if address.database:
            await self.call("SELECT", str(address.database))

    def call(self, *arguments: str | bytes) -> asyncio.Future[Any]:
        """Send one command; the future holds its reply or raises RegistryUnavailable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(reply: Any) -> None:
            if future.done():
                return
            if isinstance(reply, RegistryUnavailable):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.call_then(settle, *arguments)
        return future

    def call_then(self, settle: Callable[[Any], None], *arguments: str | bytes) -> None:
        """Send one command; `settle` gets its reply, or a RegistryUnavailable in its place."""
        if self._transport is None or self._transport.is_closing():
            settle(RegistryUnavailable("the connection to Redis is closed"))
            return
        self._waiting.append(settle)
        self._transport.write(hiredis.pack_command(arguments))

    def call_together_then(
        self, settle: Callable[[Any], None], *commands: Sequence[str | bytes]
    ) -> None:
        """Send commands that run with nothing of other clients in between.

        `settle` gets the list of their replies, or a RegistryUnavailable in its place: the first
        error of any of them.
        """
        if self._transport is None or self._transport.is_closing():
            settle(RegistryUnavailable("the connection to Redis is closed"))
            return
        errors: list[RegistryUnavailable] = []

        def hear_queued(reply: Any) -> None:
            if isinstance(reply, RegistryUnavailable):
                errors.append(reply)

        def hear(reply: Any) -> None:
            if isinstance(reply, list):
                refused = (each for each in reply if isinstance(each, hiredis.ReplyError))
                errors.extend(RegistryRefused(str(each)) for each in refused)
            settle(errors[0] if errors else reply)

        whole = (("MULTI",), *commands, ("EXEC",))
        self._waiting.extend([hear_queued] * (len(whole) - 1))
        self._waiting.append(hear)
        self._transport.write(b"".join(hiredis.pack_command(tuple(each)) for each in whole))

    def close(self) -> None:
        """Drop the connection; calls under way fail."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_open(self) -> bool:
        """Whether calls can still be made."""
        return self._transport is not None and not self._transport.is_closing()

    async def wait_closed(self) -> None:
        """Return when the connection is gone, for whatever reason."""
        await asyncio.shield(self._closed)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand every complete reply to whoever waits for it; messages to the subscriber."""
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
        if not self._waiting:
            self.close()  # an error nobody asked for, such as too many clients
            return
        settle = self._waiting.popleft()
        if isinstance(reply, hiredis.ReplyError):
            settle(RegistryRefused(str(reply)))
        else:
            settle(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail everything that waits."""
        error = RegistryUnavailable(f"the connection to Redis was lost: {exc or 'closed'}")
        while self._waiting:
            self._waiting.popleft()(error)
        if not self._closed.done():
            self._closed.set_result(None)
