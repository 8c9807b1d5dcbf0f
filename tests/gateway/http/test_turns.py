"""How many turns of the event loop a request waits: of new connections, beside busy ones."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial

import uvicorn
from uvicorn.server import ServerState

from gateway.http.client_request import ClientRequest
from gateway.http.listener import MAX_PER_TURN, Listener, listen
from gateway.http.server import create_protocol
from tests.gateway.asynchronous import run_async
from tests.gateway.http.test_server import HEAD, find_target, not_inference

REQUEST = HEAD + b"content-length: 2\r\n\r\nok"
NEW = REQUEST.replace(b"host: x", b"host: new")
BUSY = 200


class Served:
    """The turn in which each request's handler began."""

    def __init__(self) -> None:
        self.turn = 0
        self.busy: list[int] = []
        self.new: list[int] = []
        self.busy_waits_s: list[float] = []
        self.new_waits_s: list[float] = []
        self._is_counting = True
        asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.turn += 1
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self._count)

    def stop(self) -> None:
        self._is_counting = False

    async def handle(self, client: ClientRequest) -> None:
        is_new = (b"host", b"new") in client.headers
        (self.new if is_new else self.busy).append(self.turn)
        (self.new_waits_s if is_new else self.busy_waits_s).append(client.waited_s)
        client.respond(200, [], b"")


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Served, int]]:
    served = Served()
    config = uvicorn.Config(not_inference, ws="none")
    create = partial(
        create_protocol(find_target, served.handle),
        config=config,
        server_state=ServerState(),
        app_state={},
    )
    (found,) = listen("127.0.0.1", 0, 1024)
    listener = Listener(found, create)
    try:
        async with asyncio.timeout(60):
            yield served, found.getsockname()[1]
    finally:
        served.stop()
        listener.close()


def connect(stack: ExitStack, port: int, request: bytes) -> socket.socket:
    """A client that has connected and sent its request, before the loop's next turn."""
    client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    client.sendall(request)
    return client


async def until(served: list[int], count: int) -> None:
    while len(served) < count:  # noqa: ASYNC110 - each turn counts
        await asyncio.sleep(0)


@run_async
async def test_a_new_clients_request_is_handled_two_turns_after_it_is_accepted() -> None:
    async with listening() as (served, port):
        with ExitStack() as stack:
            await asyncio.sleep(0)
            began = served.turn
            connect(stack, port, NEW)  # accepted at the end of this turn, with all reads
            await until(served.new, 1)
            assert served.new[0] - began <= 2  # in the first it is begun, as a task


@run_async
async def test_a_new_client_waits_for_no_busy_one() -> None:
    """All busy ones have sent the next request; a turn begins some of them only."""
    async with listening() as (served, port):
        with ExitStack() as stack:
            busy = [connect(stack, port, REQUEST) for _ in range(BUSY)]
            await until(served.busy, BUSY)
            for client in busy:
                client.sendall(REQUEST)
            began = served.turn
            connect(stack, port, NEW)
            await until(served.busy, 2 * BUSY)
            again = served.busy[BUSY:]
            assert max(again.count(turn) for turn in again) <= MAX_PER_TURN
            assert served.new[0] - began <= 2
            assert served.new[0] < again[-1]


@run_async
async def test_the_wait_for_being_accepted_and_begun_counts() -> None:
    """A connection's from its bytes on, by the kernel's clock; later requests' from their head."""
    async with listening() as (served, port):
        with ExitStack() as stack:
            busy = connect(stack, port, REQUEST)
            await until(served.busy, 1)
            connect(stack, port, NEW)
            time.sleep(0.3)  # noqa: ASYNC251 - the loop is busy with something else
            await until(served.new, 1)
            busy.sendall(REQUEST * 3)
            await until(served.busy, 4)
    assert served.new_waits_s[0] >= 0.25
    assert max(served.busy_waits_s) < served.new_waits_s[0]
