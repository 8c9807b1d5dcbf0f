"""Waits for ports, and asks processes by HTTP whether they are ready."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import httpx

from pilotlight.errors import StartFailed
from pilotlight.platform.processes import port_is_free

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_PORT_TIMEOUT_S: Final = 2.0
"""A platform that was just killed may keep the gateway's port for a moment."""

_WITHOUT: Final = {
    "--port": ", or any free one with --port 0",
    "--grpc-port": ", or none with --grpc-port 0",
}


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
    async def is_ready() -> bool:
        async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
            try:
                return (await client.get(url)).status_code == httpx.codes.OK
            except httpx.HTTPError:
                return False

    return is_ready
