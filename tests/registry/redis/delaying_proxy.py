"""A TCP proxy to Redis that can delay either direction, to produce races."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class ProxiedConnection:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    is_subscription: bool = False
    is_silent: bool = False
    """Replies and pushes are dropped."""
    held_requests: bytearray = field(default_factory=bytearray)
    held_replies: bytearray = field(default_factory=bytearray)
    is_released: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class DelayingProxy:
    """Forwards bytes between clients and a server; subscriptions are never delayed."""

    server_port: int
    port: int = 0
    holds_requests: bool = False
    holds_replies: bool = False
    connections: list[ProxiedConnection] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def held_requests(self) -> int:
        """Bytes held on the way to the server."""
        return sum(len(each.held_requests) for each in self.connections)

    @property
    def held_replies(self) -> int:
        """Bytes held on the way to clients."""
        return sum(len(each.held_replies) for each in self.connections)

    def release(self) -> None:
        """Forward everything held, and hold no more."""
        self.holds_requests = self.holds_replies = False
        for each in self.connections:
            each.server.write(bytes(each.held_requests))
            each.held_requests.clear()
            each.client.write(bytes(each.held_replies))
            each.held_replies.clear()
            each.is_released.set()

    def drop_replies(self) -> None:
        """Discard the held replies and close their connections."""
        self.holds_replies = False
        for each in self.connections:
            if each.held_replies:
                each.held_replies.clear()
                each.client.close()

    async def forward(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Serve one connection until its client ends it; held requests are kept after that."""
        replies, server = await asyncio.open_connection("127.0.0.1", self.server_port)
        connection = ProxiedConnection(client, server)
        self.connections.append(connection)
        back = asyncio.create_task(self._forward_replies(connection, replies))
        try:
            while data := await reader.read(65536):
                connection.is_subscription |= b"SUBSCRIBE" in data
                if self.holds_requests and not connection.is_subscription:
                    connection.held_requests += data
                else:
                    server.write(data)
            if connection.held_requests:
                await connection.is_released.wait()
            await _wait_briefly(back)
        except ConnectionError:
            pass
        finally:
            back.cancel()
            server.close()
            client.close()

    async def _forward_replies(
        self, connection: ProxiedConnection, replies: asyncio.StreamReader
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await replies.read(65536):
                if self.holds_replies and not connection.is_subscription:
                    connection.held_replies += data
                elif not connection.is_silent:
                    connection.client.write(data)
            connection.client.close()


async def _wait_briefly(back: asyncio.Task[None]) -> None:
    """Give the server time to reply to the last requests."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.shield(back)


@contextlib.asynccontextmanager
async def proxy_to(server_port: int) -> AsyncIterator[DelayingProxy]:
    """A proxy on a port of its own."""
    proxy = DelayingProxy(server_port)
    listener = await asyncio.start_server(proxy.forward, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        proxy.release()
        listener.close()
        for each in proxy.connections:
            each.client.close()
        await asyncio.gather(
            *(each.client.wait_closed() for each in proxy.connections), return_exceptions=True
        )
