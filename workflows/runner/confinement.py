"""Limits of a runner's process: memory, files, processes, network, and what the kernel grants more.

Resource limits always hold. A user namespace without network, Landlock and a filter of system calls
are used where the kernel grants them; the runner reports which.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

from common.confinement import ConfinementMissing, filter_calls, restrict_files

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when its scheduler ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def limit_resources(memory_bytes: int) -> None:
    """Address space beyond what the process has, no files to write, few descriptors, no dumps."""
    with contextlib.suppress(OSError):  # a container's /proc may be read-only
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel kills this process first
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    address_space = pages * resource.getpagesize() + memory_bytes
    for kind, limit in (
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 16),
    ):
        resource.setrlimit(kind, (limit, limit))


def confine() -> list[str]:
    """Take what the kernel grants; the names of it."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    granted = []
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0:
        granted.append("network-namespace")
    with contextlib.suppress(ConfinementMissing):
        filter_calls()
        granted.append("seccomp")
    with contextlib.suppress(ConfinementMissing):
        restrict_files(_readable_folders(), [])
        granted.append("landlock")
    return granted


def _readable_folders() -> list[Path]:
    own = Path(__file__).resolve().parent.parent
    found = {Path(sys.prefix), Path(sys.base_prefix) / "lib", own, own.parent / "pilotlight"}
    found |= {Path(each) for each in ("/lib", "/lib64", "/usr/lib", "/usr/share/zoneinfo")}
    found |= {Path(each) for each in ("/dev/null", "/dev/urandom", "/etc/localtime")}
    return sorted(folder for folder in found if folder.exists())
