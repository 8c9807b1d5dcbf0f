"""Run a command that the kernel kills when its parent dies: arguments PARENT_PID COMMAND.

Run as a script by a bare interpreter (15 ms): an exec keeps the parent-death signal, and nothing
has to run between fork and exec in the supervisor.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _main() -> None:
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the signal was set
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    _main()
