"""A process of the platform that is kept running, and whether it is ready."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from common.child_process import Command, KeptProcess
from pilotlight.errors import StartFailed
from pilotlight.platform.processes import last_lines

_READY_POLL_INTERVAL_S: Final = 0.03


class SupervisedProcess(KeptProcess):
    """With a log file, whose end says why it did not start."""

    def __init__(
        self, command: Command, *, is_ready: Callable[[], Awaitable[bool]], **callbacks: Any
    ) -> None:
        """For `callbacks` see KeptProcess."""
        super().__init__(command, **callbacks)
        self._is_ready = is_ready

    async def wait_ready(self, *, timeout_s: float) -> None:
        """Return when the child is ready; raises StartFailed if it dies first or is too slow."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._is_ready():
                    if self.deaths:
                        raise self._start_failed("ended while starting")
                    await asyncio.sleep(_READY_POLL_INTERVAL_S)
        except TimeoutError:
            raise self._start_failed(f"was not ready within {timeout_s:g} s") from None

    def _start_failed(self, what: str) -> StartFailed:
        log = self.command.log_file
        tail = "" if log is None else last_lines(log)
        return StartFailed(f"{self.command.name} {what}; the end of {log}:\n{tail}")
