"""Whether Redis can save changes, and what to do where it cannot: it then answers reads alone."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from pilotlight.quantities import format_bytes
from registry.errors import RegistryRefused, RegistryUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from registry.redis.client import Registry


def is_save_error(error: BaseException | None) -> bool:
    """Whether Redis has refused a change because it cannot write its files."""
    while error is not None and not isinstance(error, RegistryRefused):
        error = error.__cause__
    return error is not None and error.cannot_save


async def is_saving(registry: Registry) -> bool:
    """False once Redis has failed to write its append-only file; also for those who may not ask."""
    with suppress(RegistryUnavailable):
        report = await registry.transactions.command("INFO", "persistence")
        return b"aof_last_write_status:err" not in report
    return True


async def unsaved_text(registry: Registry, embedded: Path | None) -> str:
    """What is wrong and what to do. `embedded`: the folder of the platform's own Redis."""
    return (
        f"the registry at {registry.url} cannot save changes, its disk is full: "
        f"{await _place_text(registry, embedded)}. Free space there; Redis takes changes again "
        "within a second"
    )


async def _place_text(registry: Registry, embedded: Path | None) -> str:
    if embedded is not None:
        with suppress(OSError):
            free = shutil.disk_usage(embedded).free
            return f"it writes to {embedded}, whose file system has {format_bytes(free)} free"
    folder = "its folder"
    with suppress(RegistryUnavailable):
        _, found = await registry.transactions.command("CONFIG", "GET", "dir")
        folder = found.decode()
    return f"it writes to {folder} on its machine"
