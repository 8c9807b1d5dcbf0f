"""Limits of a runner's process: memory, files, processes, network, and what the kernel grants more.

Resource limits always hold. A user namespace without network, Landlock and a filter of system calls
are used where the kernel grants them; the runner reports which.
"""

import contextlib
import ctypes
import resource
import sys
from pathlib import Path
from typing import Final

from common.confinement import ConfinementMissing, filter_calls, limit_resources, restrict_files

_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000

_LIMITS: Final = {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: 32, resource.RLIMIT_NPROC: 16}

_libc = ctypes.CDLL(None, use_errno=True)


def confine(memory_bytes: int) -> list[str]:
    """Limit this process, and take what the kernel grants; the names of it.

    `memory_bytes`: beyond what the process has.
    """
    limit_resources(memory_bytes, _LIMITS)
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
