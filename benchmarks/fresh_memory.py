"""Memory that the kernel has at hand, alike for every contestant.

A virtual machine gives free memory back to its host, and the next to write there pays several times
as much as whoever comes soon after another: the order of contestants would decide.
"""

import errno
import mmap
from typing import Final

_MADV_POPULATE_WRITE: Final = 23
"""Of Linux; Python has no name for it."""


def touch_free_memory(size_bytes: int) -> None:
    """Have so many bytes written, in single pages so that scattered ones are found, and freed."""
    with mmap.mmap(-1, size_bytes) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        try:
            memory.madvise(_MADV_POPULATE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            for at in range(0, size_bytes, mmap.PAGESIZE):  # a kernel before 5.14
                memory[at] = 1
