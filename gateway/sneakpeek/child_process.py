"""A Python process of the gateway's own that it exchanges messages with over a socket.

It is started when it is wanted, ends with the gateway's end of the socket, and is started again,
after a pause that grows, when it has ended by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from common.backoff import Backoff
from gateway.sneakpeek.frames import FrameReader, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_RESTART: Final = Backoff(0.2, 10.0)
_STABLE_S: Final = 30.0
"""A process that ran so long is started again at once."""
_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)


class ChildProcess:
    """`python -m MODULE DESCRIPTOR`, which `run` keeps alive while it is wanted."""

    def __init__(
        self, module: str, on_message: Callable[[Kind, bytes], None], *,
        on_start: Callable[[], object], on_end: Callable[[], object],
    ) -> None:  # fmt: skip
        self._module = module
        self._on_message = on_message
        self._on_start = on_start
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._is_wanted = asyncio.Event()
        self._connection: _Connection | None = None
        self.pid: int | None = None
        self.restarts_total = 0

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def unread_bytes(self) -> int:
        """What was sent and the process has not read yet."""
        connection = self._connection
        return 0 if connection is None else connection.transport.get_write_buffer_size()

    def want(self, *, is_wanted: bool = True) -> None:
        """A process that is no longer wanted runs on, but is not started again."""
        if is_wanted:
            self._is_wanted.set()
        else:
            self._is_wanted.clear()

    def send(self, data: bytes) -> None:
        """Without effect while the process does not run."""
        if self._connection is not None:
            self._connection.transport.write(data)

    def abort(self) -> None:
        """End a process that does not answer; it is started again."""
        if self._connection is not None:
            self._connection.transport.abort()

    async def run(self) -> None:
        """Keep the process alive while it is wanted, until cancelled."""
        failures = 0
        while True:
            await self._is_wanted.wait()
            started_s = self._loop.time()
            try:
                await self._run_once()
            except OSError as error:  # no descriptor, process or memory is left: it may be later
                logger.warning(
                    "process not started", extra={"program": self._module, "error": error}
                )
            failures = 1 if self._loop.time() - started_s > _STABLE_S else failures + 1
            self.restarts_total += 1
            logger.warning("process ended", extra={"program": self._module, "failures": failures})
            await asyncio.sleep(_RESTART.pause_s(failures))

    async def _run_once(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            process = await self._start(theirs)
        except BaseException:
            ours.close()
            raise
        try:
            _, connection = await self._loop.create_connection(
                lambda: _Connection(self._on_message), sock=ours
            )
            self._connection, self.pid = connection, process.pid
            self._on_start()
            await connection.closed
        finally:
            if self._connection is not None:
                self._connection.transport.close()
            self._connection = self.pid = None
            self._on_end()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        with theirs:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", self._module, str(theirs.fileno()),
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL, env={**os.environ, **_ONE_THREAD},
            )  # fmt: skip


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, on_message: Callable[[Kind, bytes], None]) -> None:
        self._on_message = on_message
        self._reader = FrameReader()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        for kind, content in self._reader.feed(data):
            self._on_message(kind, content)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
