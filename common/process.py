"""A process among others: what `ps` and `top` show of it, and the signals that end it."""

import asyncio
import ctypes
import os
import signal
import sys
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


# Processes that the kernel kills when their parent ends, even by SIGKILL. Linux only.
#
# `die_with` is for a process that runs our code. `dies_with_this_thread` is for any command: no
# Python code may run between fork and exec, so this file is also a script, with the arguments
# PARENT_PID COMMAND. It takes 15 ms, and what it sets survives the exec.


_PR_SET_PDEATHSIG = 1


def dies_with_this_thread(command: list[str]) -> list[str]:
    """The command line that runs `command`, whose first part is a path, until this thread ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def die_with(parent: int) -> None:
    """The kernel kills this process when `parent`, which has just started it, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
