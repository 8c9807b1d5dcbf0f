"""A process among others: what `ps` and `top` show of it, and the signals that end it."""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from setproctitle import getproctitle, setproctitle

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Numbers of `mallopt` in glibc."""
_MAX_IN_HEAP: Final = 4 << 20
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def set_process_title(name: str) -> None:
    """`pilotlight: NAME` in place of the command line."""
    os.environ["SPT_NOENV"] = "1"  # else the title takes the place of /proc/PID/environ
    setproctitle(f"pilotlight: {name}")


def extend_process_title(part: str) -> None:
    """Of a forked process, which is a part of the one whose title it has."""
    setproctitle(f"{getproctitle()} {part}")


def keep_freed_memory(byte_count: int) -> None:
    """Let the allocator keep so much for the next large blocks, such as bodies of requests.

    glibc gives the end of its heap back at once, and each page that comes again is an interrupt.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # other libraries have none
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, byte_count)
        set_option(_M_MMAP_THRESHOLD, _MAX_IN_HEAP)


@contextmanager
def on_stop_signals(stop: Callable[[int], object]) -> Iterator[None]:
    """Call `stop` in the running loop with the number of each SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
