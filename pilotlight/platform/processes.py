"""A kept process and whether it is ready; whether ports are free; the end of a log."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from common.child_process import Command, KeptProcess
from common.http_client import HttpClient, split_url
from common.http_connection import HttpError
from pilotlight.errors import StartFailed

_PORT_TIMEOUT_S: Final = 2.0
"""A platform that was just killed may keep the gateway's port for a moment."""
_WITHOUT: Final = {
    "--port": ", or any free one with --port 0",
    "--grpc-port": ", or none with --grpc-port 0",
}
_READY_POLL_INTERVAL_S: Final = 0.03


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def last_lines(log_file: Path, *, count: int = 8) -> str:
    """The end of a log, for an error message."""
    try:
        lines = log_file.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"  | {line}" for line in lines[-count:])


async def wait_for_ports(host: str, port: int, grpc_port: int) -> None:
    """Return when the gateway's ports are free, of which 0 is none; raises StartFailed."""
    if port:
        await wait_for_port(host, port)
    if grpc_port:
        await wait_for_port(host, grpc_port, flag="--grpc-port")


async def wait_for_port(host: str, port: int, *, flag: str = "--port") -> None:
    """Return when the port that `flag` names is free; raises StartFailed."""
    deadline_s = time.monotonic() + _PORT_TIMEOUT_S
    while not port_is_free(host, port):
        if time.monotonic() > deadline_s:
            raise StartFailed(
                f"port {port} of {host} is in use by another program: "
                f"choose another with {flag}{_WITHOUT[flag]}"
            )
        await asyncio.sleep(0.05)


def returns_ok(url: str) -> Callable[[], Awaitable[bool]]:
    address, path = split_url(url)

    async def is_ready() -> bool:
        client = HttpClient()
        try:
            return (await client.request("GET", address, path, timeout_s=2.0)).status == 200
        except HttpError:
            return False
        finally:
            client.close()

    return is_ready


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
