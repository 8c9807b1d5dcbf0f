"""Processes that the kernel kills when their parent ends, even by SIGKILL. Linux only.

`die_with` is for a process that runs our code. `dies_with_this_thread` is for any command: no
Python code may run between fork and exec, so this file is also a script without packages, with the
arguments PARENT_PID COMMAND. It takes 15 ms, and what it sets survives the exec.
"""

import ctypes
import os
import signal
import sys

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


def outlive_parent() -> None:
    """Undo `die_with`, for a process that ends by itself, after its own children."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
