"""Folders with one file per tenant, named like its namespace: mounted Secrets and ConfigMaps."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

T = TypeVar("T")

OPERATOR: Final = "_operator"
"""File for endpoints that show all tenants' data: metrics, explanations."""
RELOAD_INTERVAL_S: Final = 2.0
"""A mounted volume changes without notice."""


def files_of(folder: Path) -> list[Path]:
    """The folder's files by name, without hidden files, where a mounted volume keeps its versions.

    Raises OSError.
    """
    return [
        file
        for file in sorted(folder.iterdir())
        if not file.name.startswith(".") and file.is_file()
    ]


async def wait_and_reload(
    read: Callable[[Path], T], folder: Path, use: Callable[[T], object]
) -> None:
    """Wait for the reload interval, then read the folder; an invalid file changes nothing."""
    await asyncio.sleep(RELOAD_INTERVAL_S)
    try:
        use(await asyncio.to_thread(read, folder))
    except (OSError, ValueError) as error:
        logger.warning(
            "cannot read tenant files; the previous content stays in use",
            extra={"folder": str(folder)}, exc_info=error,
        )  # fmt: skip
