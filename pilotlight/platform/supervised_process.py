"""One supervised child process: start, readiness, restart with backoff when it dies, stop."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from common.backoff import Backoff
from pilotlight.errors import StartFailed
from pilotlight.platform.processes import kill_group, last_lines, start_child, stop_child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(initial_s=0.25, max_s=30.0)
_HEALTHY_AFTER_S: Final = 30.0
_READY_POLL_INTERVAL_S: Final = 0.03


@dataclass(slots=True)
class RestartBackoff:
    """Restart delays: doubled with each death in a row, reset by a process that ran for long."""

    deaths: int = 0

    def next_delay_s(self, *, ran_s: float) -> float:
        self.deaths = 1 if ran_s >= _HEALTHY_AFTER_S else self.deaths + 1
        return _BACKOFF.pause_s(self.deaths)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    name: str
    command: Sequence[str]
    log_file: Path
    env: Mapping[str, str]
    is_piped: bool = False
    """Connect standard input (`send`) and standard output (`on_line`) to this process."""


class SupervisedProcess:
    """Keeps one child running from `run` until `stop`."""

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        is_ready: Callable[[], Awaitable[bool]],
        on_line: Callable[[bytes], None] | None = None,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self.spec = spec
        self.child: asyncio.subprocess.Process | None = None
        self.deaths = 0
        self._is_ready = is_ready
        self._on_line = on_line
        self._on_death = on_death
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Start the child, and restart it whenever it dies, until `stop`."""
        backoff = RestartBackoff()
        while not self._stopping.is_set():
            started_s = time.monotonic()
            self.child = child = await start_child(
                self.spec.command,
                log_file=self.spec.log_file,
                env=self.spec.env,
                is_piped=self.spec.is_piped,
            )
            if self._stopping.is_set():  # `stop` was called during the start
                await stop_child(child, grace_s=0.0)
                return
            if child.stdout is not None and self._on_line is not None:
                async for line in child.stdout:
                    self._on_line(line)
            status = await child.wait()
            if self._stopping.is_set():
                return
            kill_group(child)
            self.deaths += 1
            if self._on_death is not None:
                self._on_death()
            delay_s = backoff.next_delay_s(ran_s=time.monotonic() - started_s)
            logger.warning(
                "process died; restarting it",
                extra={"process_name": self.spec.name, "status": status, "delay_s": delay_s},
            )
            await self._pause(delay_s)

    async def _pause(self, delay_s: float) -> None:
        """Sleep, or return as soon as `stop` is called."""
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            return

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
        log = self.spec.log_file
        return StartFailed(f"{self.spec.name} {what}; the end of {log}:\n{last_lines(log)}")

    async def send(self, line: bytes) -> None:
        """Write one line to a piped child; the line is lost if the child has ended."""
        if self.child is None or self.child.stdin is None or self.child.stdin.is_closing():
            return
        try:
            self.child.stdin.write(line + b"\n")
            await self.child.stdin.drain()
        except ConnectionError:
            logger.debug("line not sent: the process ended", extra={"process_name": self.spec.name})

    def announce_stop(self) -> None:
        """Tell the child by a first SIGTERM that `stop` comes; it is not restarted any more."""
        self._stopping.set()
        if self.child is not None and self.child.returncode is None:
            with suppress(ProcessLookupError):
                self.child.terminate()

    async def stop(self, *, grace_s: float) -> None:
        """End the child for good: with SIGTERM, and after the grace period with SIGKILL."""
        self._stopping.set()
        if self.child is None:
            return
        if self.child.stdin is not None:
            self.child.stdin.close()
        await stop_child(self.child, grace_s=grace_s)
