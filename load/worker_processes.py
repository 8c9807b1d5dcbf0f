"""Worker processes that end when the process that started them is gone, even by SIGKILL."""

from __future__ import annotations

import os
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait

_PARENT_IS_GONE = 1


def end_with_parent() -> None:
    """Have this process end with its parent, whatever it does then. For processes of a pool."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(_PARENT_IS_GONE)
