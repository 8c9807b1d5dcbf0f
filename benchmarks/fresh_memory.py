"""Memory that the kernel has at hand, alike for every contestant.

A virtual machine gives free memory back to its host, and the next to write there pays several times
as much as whoever comes soon after another: the order of contestants would decide.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_PIECE_BYTES: Final = 1 << 20


def touch_free_memory(size_bytes: int, folder: Path) -> None:
    """Write a file of so many bytes and delete it: its pages are free then, and known."""
    piece = bytes(_PIECE_BYTES)
    with tempfile.TemporaryFile(dir=folder) as sink:
        for _ in range(0, size_bytes, _PIECE_BYTES):
            sink.write(piece)
