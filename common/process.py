"""A process among others: what `ps` and `top` show of it, and its end with its parent's."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

from setproctitle import getproctitle, setproctitle

_PR_SET_PDEATHSIG: Final = 1


def set_process_title(name: str) -> None:
    """`pilotlight: NAME` in place of the command line."""
    os.environ["SPT_NOENV"] = "1"  # else the title takes the place of /proc/PID/environ
    setproctitle(f"pilotlight: {name}")


def extend_process_title(part: str) -> None:
    """Of a forked process, which is a part of the one whose title it has."""
    setproctitle(f"{getproctitle()} {part}")


def die_with(parent: int) -> None:
    """The kernel kills this process, which `parent` has just forked, when that one ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
