"""Whether files that are read again when they change have changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def file_stamp(*files: Path) -> tuple[int, ...]:
    """Changes with the files' contents, also where a mounted Secret replaces a link.

    Raises OSError.
    """
    found = [os.stat(file) for file in files]
    return tuple(n for each in found for n in (each.st_ino, each.st_mtime_ns, each.st_size))
