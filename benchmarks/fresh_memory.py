"""Memory that the kernel has at hand, alike for every contestant.

A virtual machine gives free memory back to its host, and the next to write there pays several times
as much as whoever comes soon after another: the order of contestants would decide.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_PIECES_BYTES: Final = (64 << 10, 1 << 20)
"""The kernel takes runs of pages as long as a write: short and long ones lie apart."""


def touch_free_memory(size_bytes: int, folder: Path) -> None:
    """Write so many bytes in short and in long pieces, and delete them: their pages are free."""
    with ExitStack() as stack:
        for piece_bytes in _PIECES_BYTES:
            sink = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))
            piece = bytes(piece_bytes)
            for _ in range(0, size_bytes, piece_bytes):
                sink.write(piece)
