"""The pod's front processes: starts and replaces them, and deals connections out to them.

Where no front takes connections for a while the device process serves them itself.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from runtime.child_processes import start_child
from runtime.fronts.channel import socket_pair
from runtime.fronts.front_link import DeviceSide, FrontLink
from runtime.metrics import FRONT_RESTARTS, FRONTS
from runtime.protocols.server import CLOSE_TIMEOUT_S

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from runtime.protocols.server import QuietServer

logger = logging.getLogger(__name__)

RESTART_PAUSE_S: Final = 0.5
"""Before a front is replaced that lived for a shorter time."""
READY_TIMEOUT_S: Final = 5.0
"""How long a connection waits for a front; one that the device process serves stays with it."""
ACCEPT_RETRY_S: Final = 1.0
"""After an error of the listener, such as a lack of descriptors."""


class Fronts:
    def __init__(
        self,
        control: socket.socket,
        number: int,
        server: QuietServer,
        device_side: DeviceSide,
        *,
        on_lost: Callable[[], None],
    ) -> None:
        """`control`: of the process that forks fronts; `on_lost` is called if that has ended."""
        self._control = control
        self._number = number
        self._server = server
        self._device_side = device_side
        self._on_lost = on_lost
        self._links: dict[int, FrontLink] = {}
        self._next = 0
        self._is_closing = False
        self._ready = asyncio.Event()
        """Set when a front becomes ready."""
        self._tasks = asyncio.TaskGroup()
        FRONTS.set_function(lambda: sum(link.is_ready for link in self._links.values()))

    async def run(self, listener: socket.socket) -> None:
        """Until `close`, or cancelled."""
        with listener:
            async with self._tasks:
                accepting = self._tasks.create_task(self._accept(listener))
                async with asyncio.TaskGroup() as fronts:
                    for number in range(self._number):
                        fronts.create_task(self._keep(number))
                accepting.cancel()

    async def close(self) -> None:
        """Take no further connections, and wait for the fronts to end; none outlives the pod."""
        self._is_closing = True
        for link in self._links.values():
            link.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for link in self._links.values():
                    await link.wait_closed()
        self._control.close()

    async def _keep(self, number: int) -> None:
        """One front at a time, until `close`."""
        loop = asyncio.get_running_loop()
        while not self._is_closing:
            begun_s = loop.time()
            ours, theirs = socket_pair()
            try:
                start_child(self._control, number, theirs.stream, theirs.descriptors)
            except OSError as error:
                logger.error("no front can be started", extra={"error": str(error)})
                self._on_lost()
                return
            link = FrontLink(self._device_side, self._adopt_passed, self._ready.set)
            self._links[number] = link
            await link.run(ours)
            if self._is_closing:
                return
            FRONT_RESTARTS.inc()
            logger.warning("a front process ended and is replaced", extra={"front": number})
            if loop.time() - begun_s < RESTART_PAUSE_S:
                await asyncio.sleep(RESTART_PAUSE_S)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await self._wait_ready(self._number)
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("a connection was not accepted", extra={"error": error})
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            if (link := self._next_link()) is None:
                await self._wait_ready(1)
                link = self._next_link()
            if link is None:
                self._tasks.create_task(self._adopt(connection, is_internal=False))
            else:
                link.give(connection)

    async def _wait_ready(self, number: int) -> None:
        """Until that many fronts are ready, or for READY_TIMEOUT_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_TIMEOUT_S):
                while sum(link.is_ready for link in self._links.values()) < number:
                    self._ready.clear()
                    await self._ready.wait()

    def _next_link(self) -> FrontLink | None:
        """The ready fronts in turn, None without one."""
        for _ in range(self._number):
            self._next = (self._next + 1) % self._number
            link = self._links.get(self._next)
            if link is not None and link.is_ready:
                return link
        return None

    def _adopt_passed(self, connection: socket.socket) -> None:
        self._tasks.create_task(self._adopt(connection, is_internal=True))

    async def _adopt(self, connection: socket.socket, *, is_internal: bool) -> None:
        connection.setblocking(False)
        try:
            await self._server.adopt(connection, is_internal=is_internal)
        except (OSError, RuntimeError) as error:
            logger.debug("a connection was not served", extra={"error": error})
            connection.close()
