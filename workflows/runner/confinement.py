"""Limits of a runner's process: memory, files, processes, network, and what the kernel grants more.

Resource limits always hold. A user namespace without network, Landlock and a filter of system calls
are used where the kernel grants them; the runner reports which.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Final, TypeAlias

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_ALL_FILE_RIGHTS: Final = (1 << 13) - 1
"""Of Landlock's first version: whatever it can forbid on every kernel that has it."""
_BLOCKED_CALLS: Final = {
    "x86_64": (0xC000003E, 56, (41, 42, 49, 50, 57, 58, 59, 101, 310, 311, 322, 425, 434, 438)),
    "aarch64": (0xC00000B7, 220, (198, 203, 200, 201, 221, 117, 270, 271, 281, 425, 434, 438)),
}
"""Architecture, and numbers of clone, and of socket, connect, bind, listen, fork, vfork, execve,
ptrace, process_vm_readv, process_vm_writev, execveat, io_uring_setup, pidfd_open, pidfd_getfd."""
_CLONE3, _CLONE_THREAD = 435, 0x10000
_LOAD, _JUMP_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _EPERM, _ENOSYS, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
_Line: TypeAlias = tuple[int, int, int, int]

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
    if _restrict_files():
        granted.append("landlock")
    if _restrict_calls():
        granted.append("seccomp")
    return granted


def _restrict_files() -> bool:
    """Only Python's own folders can be read from now on, and nothing written."""
    attribute = struct.pack("=Q", _ALL_FILE_RIGHTS)
    ruleset = _libc.syscall(_LANDLOCK_CREATE, attribute, len(attribute), 0)
    if ruleset < 0:
        return False
    for folder in _readable_folders():
        opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        rights = _READ_FILE | (_READ_FOLDER if folder.is_dir() else 0)
        _libc.syscall(_LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", rights, opened), 0)
        os.close(opened)
    is_done: bool = _libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return is_done


def _readable_folders() -> list[Path]:
    own = Path(__file__).resolve().parent.parent
    found = {Path(sys.prefix), Path(sys.base_prefix) / "lib", own, own.parent / "pilotlight"}
    found |= {Path(each) for each in ("/lib", "/lib64", "/usr/lib", "/usr/share/zoneinfo")}
    found |= {Path(each) for each in ("/dev/null", "/dev/urandom", "/etc/localtime")}
    return sorted(folder for folder in found if folder.exists())


def _restrict_calls() -> bool:
    """No sockets, no programs and no other processes from now on (seccomp, classic BPF)."""
    known = _BLOCKED_CALLS.get(platform.machine())
    if known is None:
        return False
    program = b"".join(struct.pack("=HBBI", *line) for line in _filter(*known))
    buffer = ctypes.create_string_buffer(program)
    filters = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(buffer))
    return bool(_libc.prctl(_PR_SET_SECCOMP, 2, filters, 0, 0) == 0)


def _filter(architecture: int, clone: int, numbers: tuple[int, ...]) -> list[_Line]:
    """Lines of (code, jump if true, jump if false, operand).

    `clone` makes threads only; glibc takes it where `clone3`, whose flags a filter cannot read,
    does not exist.
    """
    lines: list[_Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ENOSYS),
        (_JUMP_EQUAL, 0, 4, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_JUMP_IF_SET, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _EPERM),
    ]
    for number in numbers:
        lines += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM)]
    return [*lines, (_RETURN, 0, 0, _ALLOW)]
