"""Child processes: started with a parent death signal, a session and a log file of their own.

A child with its own session does not receive the terminal's Ctrl-C, so its parent can stop all
children in order. The death signal ends the children when the parent is killed. Also whether ports
are free, and by HTTP whether a process is ready.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from common.http_client import HttpClient, split_url
from common.http_connection import HttpError
from pilotlight.errors import StartFailed
from runtime import parent_death_signal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

_REPOSITORY = str(Path(__file__).resolve().parents[2])
_PARENT_DEATH_SIGNAL = parent_death_signal.__file__


def python_module(module: str) -> list[str]:
    """The command that runs a module; `-P` keeps the working directory off the import path."""
    return [sys.executable, "-P", "-m", module]


def python_environment(base: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a child imports the same code as this process."""
    paths = [_REPOSITORY, *base.get("PYTHONPATH", "").split(os.pathsep)]
    return {**base, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in paths if path))}


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


async def start_child(
    command: Sequence[str], *, log_file: Path, env: Mapping[str, str], is_piped: bool = False
) -> asyncio.subprocess.Process:
    """Start a child; `is_piped` connects its standard input and output to this process.

    Call it from the main thread only: the death signal is sent when the forking thread ends.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", _PARENT_DEATH_SIGNAL, str(os.getpid()), *command,
            stdin=asyncio.subprocess.PIPE if is_piped else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if is_piped else descriptor,
            stderr=descriptor,
            env=python_environment(env),
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(descriptor)


async def stop_child(child: asyncio.subprocess.Process, *, grace_s: float) -> None:
    """Send SIGTERM; after the grace period kill the child and all of its descendants."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await child.wait()
        except TimeoutError:
            pass
    kill_group(child)
    await child.wait()


def kill_group(child: asyncio.subprocess.Process) -> None:
    """Kill the remaining processes of the session that a child leads."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def last_lines(log_file: Path, *, count: int = 8) -> str:
    """The end of a log, for an error message."""
    try:
        lines = log_file.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"  | {line}" for line in lines[-count:])


_PORT_TIMEOUT_S: Final = 2.0
"""A platform that was just killed may keep the gateway's port for a moment."""

_WITHOUT: Final = {
    "--port": ", or any free one with --port 0",
    "--grpc-port": ", or none with --grpc-port 0",
}


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
