"""A link to Redis whose two directions can be held up, to bring about races on purpose."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(eq=False)
class Lane:
    """One connection through the link."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    is_subscription: bool = False
    held_requests: bytearray = field(default_factory=bytearray)
    held_replies: bytearray = field(default_factory=bytearray)
    is_released: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Link:
    """Passes bytes on between clients and a server; subscriptions are never held up."""

    server_port: int
    port: int = 0
    holds_requests: bool = False
    holds_replies: bool = False
    lanes: list[Lane] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def held_requests(self) -> int:
        """Bytes on their way to the server that it has not been given."""
        return sum(len(lane.held_requests) for lane in self.lanes)

    @property
    def held_replies(self) -> int:
        """Bytes on their way back that nobody has been given."""
        return sum(len(lane.held_replies) for lane in self.lanes)

    def release(self) -> None:
        """Pass on all that was held up, and hold up no more."""
        self.holds_requests = self.holds_replies = False
        for lane in self.lanes:
            lane.server.write(bytes(lane.held_requests))
            lane.held_requests.clear()
            lane.client.write(bytes(lane.held_replies))
            lane.held_replies.clear()
            lane.is_released.set()

    def cut(self) -> None:
        """Lose what is held on its way back, with the connections it was for."""
        self.holds_replies = False
        for lane in self.lanes:
            if lane.held_replies:
                lane.held_replies.clear()
                lane.client.close()

    async def carry(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Serve one connection until its client ends it; what is held for the server is kept."""
        replies, server = await asyncio.open_connection("127.0.0.1", self.server_port)
        lane = Lane(client, server)
        self.lanes.append(lane)
        back = asyncio.create_task(self._carry_back(lane, replies))
        try:
            while data := await reader.read(65536):
                lane.is_subscription |= b"SUBSCRIBE" in data
                if self.holds_requests and not lane.is_subscription:
                    lane.held_requests += data
                else:
                    server.write(data)
            if lane.held_requests:
                await lane.is_released.wait()
            await replies_end(back)
        except ConnectionError:
            pass
        finally:
            back.cancel()
            server.close()
            client.close()

    async def _carry_back(self, lane: Lane, replies: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await replies.read(65536):
                if self.holds_replies and not lane.is_subscription:
                    lane.held_replies += data
                else:
                    lane.client.write(data)
            lane.client.close()


async def replies_end(back: asyncio.Task[None]) -> None:
    """Give the server the time to answer what it was given last."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.shield(back)


@contextlib.asynccontextmanager
async def link_to(server_port: int) -> AsyncIterator[Link]:
    """A link on a port of its own."""
    link = Link(server_port)
    listener = await asyncio.start_server(link.carry, "127.0.0.1", 0)
    link.port = listener.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        link.release()
        listener.close()
        for lane in link.lanes:
            lane.client.close()
        await asyncio.gather(
            *(lane.client.wait_closed() for lane in link.lanes), return_exceptions=True
        )
