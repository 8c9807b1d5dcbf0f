"""Runs a command that the kernel kills when its parent dies: arguments PARENT_PID COMMAND.

This is a separate script, which takes 15 ms, because no Python code may run between fork and exec
in the parent. The script sets the signal and executes the command; the setting survives the exec.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def dies_with_this_thread(command: list[str]) -> list[str]:
    """The command line that runs `command`, whose first part is a path, under this script."""
    return [sys.executable, __file__, str(os.getpid()), *command]


def _main() -> None:
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the signal was set
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    _main()
