"""The model server as a process of the pod: `--engine-command`, restarted when it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from common.backoff import Backoff
from runtime.parent_death_signal import dies_with_this_thread

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)

BACKOFF: Final = Backoff(initial_s=0.5, max_s=30.0)
STOP_TIMEOUT_S: Final = 5.0
_WITHHELD: Final = ("PILOTLIGHT_", "AWS_", "STORAGE_", "HF_TOKEN")
"""Variables with the pod's own credentials, which models of others' code must not read."""


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback interface, each another one."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


@dataclass(slots=True)
class ServerProcess:
    """One process at a time, with the same ports for as long as the pod runs."""

    command: str
    repository: Path
    log_file: Path | None
    """For its output; None: the pod's own."""
    ports: list[int] = field(default_factory=lambda: free_ports(3))
    process: asyncio.subprocess.Process | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever the process has ended."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def process_id(self) -> int | None:
        """Of the running server."""
        return (
            None
            if self.process is None or self.process.returncode is not None
            else self.process.pid
        )

    def with_values(self, text: str) -> str:
        """A text with the ports and the folder in place of their names."""
        port, grpc_port, metrics_port = map(str, self.ports)
        for name, value in (
            ("{repository}", str(self.repository)),
            ("{port}", port),
            ("{grpc_port}", grpc_port),
            ("{metrics_port}", metrics_port),
        ):
            text = text.replace(name, value)
        return text

    async def run(self) -> None:
        """Keep the server running until cancelled, which ends it."""
        failures = 0
        try:
            while True:
                begun_s = asyncio.get_running_loop().time()
                await self._run_once()
                lasted_s = asyncio.get_running_loop().time() - begun_s
                failures = 1 if lasted_s > BACKOFF.max_s else failures + 1
                await asyncio.sleep(BACKOFF.pause_s(failures))
        finally:
            await asyncio.shield(self._end())

    async def _run_once(self) -> None:
        words = [self.with_values(word) for word in shlex.split(self.command)]
        path = shutil.which(words[0])
        if path is None:
            logger.error("engine command not found", extra={"command": words[0]})
            return
        output = None if self.log_file is None else self.log_file.open("ab")
        try:
            self.process = await asyncio.create_subprocess_exec(
                *dies_with_this_thread([path, *words[1:]]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=server_environment(os.environ),
                cwd=self.repository,
                start_new_session=True,  # its workers end with it
            )
        finally:
            if output is not None:
                output.close()
        logger.info("model server started", extra={"pid": self.process.pid, "url": self.url})
        status = await self.process.wait()
        self._kill_group()
        logger.warning("model server ended", extra={"status": status})
        self.ended.set()

    def end_hung(self) -> None:
        """End a server that hangs; `run` starts it again."""
        logger.warning("model server hangs, it is killed")
        self._kill_group()

    def _kill_group(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def _end(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.process.wait()
        except TimeoutError:
            pass
        self._kill_group()
        await self.process.wait()


def server_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The pod's environment without its credentials."""
    return {name: value for name, value in environment.items() if not name.startswith(_WITHHELD)}
