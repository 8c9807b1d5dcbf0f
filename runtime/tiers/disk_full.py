"""Failures of a load by errors of writing to the disk cache; a full one says what is free."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Final

from runtime.errors import DiskFull, LoadFailed, StorageFailed

if TYPE_CHECKING:
    from pathlib import Path

_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def write_error(error: OSError, cache: Path, what: str) -> LoadFailed:
    """The failure where `what` cannot be written to the cache's folder."""
    if error.errno not in _DISK_FULL:
        return StorageFailed(f"{what} cannot be written to the disk cache {cache}: {error}")
    return DiskFull(
        f"{what} cannot be written to the disk cache {cache}, whose file system has"
        f" {free_bytes(cache)} bytes free ({os.strerror(error.errno or 0)}): free some space, or"
        " give the cache another folder"
    )


def free_bytes(cache: Path) -> int:
    """What the file system of the cache has free, which may be nobody's folder any more."""
    while not cache.exists():
        cache = cache.parent
    return shutil.disk_usage(cache).free
