"""Responses to clients that are gone, on uvloop's own connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

from runtime.protocols.gone_clients import GoneClients

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


async def _closed_transport() -> asyncio.Transport:
    """Of a connection that has just been closed."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)  # type: ignore[arg-type]

    server = await loop.create_server(Accepting, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    transport = await accepted
    transport.abort()
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    return transport


async def _send_to(transport: asyncio.Transport, *, is_wrapped: bool) -> None:
    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"x"})

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        transport.write(message["body"])

    await (GoneClients(respond) if is_wrapped else respond)({"type": "http"}, receive, send)


def test_what_is_sent_to_a_closed_connection_is_dropped() -> None:
    async def run() -> None:
        transport = await _closed_transport()
        with pytest.raises(RuntimeError, match="the handler is closed"):
            await _send_to(transport, is_wrapped=False)
        await _send_to(transport, is_wrapped=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_other_errors_are_not_hidden() -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("something else")

    async def nothing() -> Message:
        return {}

    async def ignore(message: Message) -> None: ...

    with pytest.raises(RuntimeError, match="something else"):
        asyncio.run(GoneClients(fail)({"type": "http"}, nothing, ignore))
