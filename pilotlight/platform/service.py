"""One supervised child process: started, found ready, restarted with back-off when it dies."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pilotlight.errors import StartFailed
from pilotlight.platform.backoff import Backoff, BackoffParams, after_death
from pilotlight.platform.processes import kill_group, last_lines, start_child, stop_child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.03
"""Between two looks at a child that is starting."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """How to run one child."""

    name: str
    command: Sequence[str]
    log_file: Path
    env: Mapping[str, str]
    piped: bool = False
    """Connect standard input and output to us; `on_line` gets what it says."""


class Service:
    """Keeps one child running from `run` until `stop`."""

    def __init__(
        self,
        spec: ServiceSpec,
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
        """Start the child, and start it again whenever it dies, until `stop`."""
        backoff = Backoff()
        while not self._stopping.is_set():
            started_s = time.monotonic()
            self.child = child = await start_child(
                self.spec.command,
                log_file=self.spec.log_file,
                env=self.spec.env,
                piped=self.spec.piped,
            )
            if self._stopping.is_set():  # asked to stop while it was being started
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
            backoff, delay_s = after_death(
                backoff, ran_s=time.monotonic() - started_s, params=BackoffParams()
            )
            logger.warning(
                "process died; it starts again",
                extra={"service": self.spec.name, "status": status, "delay_s": delay_s},
            )
            await self._pause(delay_s)

    async def _pause(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def wait_ready(self, *, timeout_s: float) -> None:
        """Return when the child answers; `StartFailed` when it dies first or takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._is_ready():
                    if self.deaths:
                        raise self._start_failed("ended while starting")
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise self._start_failed(f"was not ready within {timeout_s:g} s") from None

    def _start_failed(self, what: str) -> StartFailed:
        log = self.spec.log_file
        return StartFailed(f"{self.spec.name} {what}; the end of {log}:\n{last_lines(log)}")

    async def send(self, line: bytes) -> None:
        """Write one line to a piped child; a child that is gone reads nothing."""
        if self.child is None or self.child.stdin is None or self.child.stdin.is_closing():
            return
        try:
            self.child.stdin.write(line + b"\n")
            await self.child.stdin.drain()
        except ConnectionError:
            logger.debug("a line was lost: the process is gone", extra={"service": self.spec.name})

    async def stop(self, *, grace_s: float) -> None:
        """End the child for good: asked first, killed after the grace."""
        self._stopping.set()
        if self.child is None:
            return
        if self.child.stdin is not None:
            self.child.stdin.close()
        await stop_child(self.child, grace_s=grace_s)
