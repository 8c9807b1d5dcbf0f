"""Limits that a process sets itself and cannot lift: no network, few files, no other processes.

Linux only: Landlock for files, a filter of system calls (seccomp) for the rest. Neither needs
privileges or namespaces, so both work inside containers.
"""

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION = 1
_RULE_PATH = 1
# Rights of include/uapi/linux/landlock.h.
_WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 1, 1 << 2, 1 << 3
_REMOVE = 1 << 4 | 1 << 5
_MAKE = 1 << 7 | 1 << 8  # folders and files
_TRUNCATE = 1 << 14
_READ = _READ_FILE | _READ_FOLDER
_WRITE = _READ | _WRITE_FILE | _REMOVE | _MAKE | _TRUNCATE
_OF_FILES = _READ_FILE | _WRITE_FILE | _TRUNCATE
_RIGHTS_OF_ABI: Final = ((5, 1 << 16), (3, 1 << 15), (2, 1 << 14), (1, 1 << 13))
"""By the first version of Landlock that has them: the bit after its last right of files."""
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_FROM, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ALLOW = 0x80000000, 0x7FFF0000
_DENY, _UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_OTHER_NUMBERS: Final = 0x40000000
"""System calls of x32 on x86-64."""
_CLONE3, _CLONE_THREAD = 435, 0x10000
# Architecture, number of clone, and what is denied: creation of sockets and processes, addresses of
# sockets, other programs, other processes' memory, limits and signals, namespaces, the kernel.
_DENIED: Final = {
    "x86_64": (0xC000003E, 56, (
        41, 42, 49, 50, 57, 58, 59, 62, 101, 129, 155, 161, 165, 166, 175, 200, 234, 246, 248, 250,
        272, 297, 298, 303, 308, 310, 311, 313, 321, 322, 323, 424, 425, 426, 427, 434, 438, 440,
    )),
    "aarch64": (0xC00000B7, 220, (
        39, 40, 41, 51, 97, 104, 105, 117, 129, 130, 131, 138, 198, 200, 201, 203, 217, 219, 221,
        240, 241, 268, 270, 271, 273, 280, 281, 282, 424, 425, 426, 427, 434, 438, 440,
    )),
}  # fmt: skip


class ConfinementMissing(Exception):
    """This machine cannot confine a process, which must therefore run no foreign code."""


def limit_resources(memory_bytes: int, limits: Mapping[int, int]) -> None:
    """Limit this process, which the kernel is to kill before others.

    Args:
        memory_bytes: address space beyond what it has.
        limits: more of them, by RLIMIT constant of `resource`.
    """
    with suppress(OSError):  # a container's /proc may be read-only
        Path("/proc/self/oom_score_adj").write_text("1000")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    address_space = pages * resource.getpagesize() + memory_bytes
    fixed = {resource.RLIMIT_AS: address_space, resource.RLIMIT_CORE: 0}
    for kind, limit in (fixed | dict(limits)).items():
        resource.setrlimit(kind, (limit, limit))


def keep_only(descriptor: int) -> None:
    """Close all descriptors but this and the standard ones, such as those that a fork inherits."""
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, 4096)


def confine(*, readable: Sequence[Path], writable: Sequence[Path], memory_bytes: int) -> None:
    """Confine this process, which must have one thread; raises ConfinementMissing.

    Args:
        readable: files and folders that may be read, with all below them.
        writable: folders whose files may also be written.
        memory_bytes: address space beyond what it has, and the size of a file.
    """
    limit_resources(memory_bytes, {resource.RLIMIT_FSIZE: memory_bytes})
    filter_calls()
    restrict_files(readable, writable)


def restrict_files(readable: Sequence[Path], writable: Sequence[Path]) -> None:
    """Leave this process, which must have one thread, these files; raises ConfinementMissing.

    For the arguments see `confine`.
    """
    libc = _prepared()
    version = libc.syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION)
    if version < 1:
        raise ConfinementMissing("the kernel has no Landlock (5.13 or later, enabled with lsm=)")
    handled = next(end for least, end in _RIGHTS_OF_ABI if version >= least) - 1
    attributes = struct.pack("=Q", handled)
    rules = libc.syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        raise ConfinementMissing(f"Landlock: {os.strerror(ctypes.get_errno())}")
    for paths, rights in ((readable, _READ), (writable, _WRITE)):
        for path in paths:
            _allow(libc, rules, path, rights & handled)
    if libc.syscall(_LANDLOCK_RESTRICT, rules, 0):
        raise ConfinementMissing(f"Landlock: {os.strerror(ctypes.get_errno())}")
    os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    rule = struct.pack("=Qi", rights if path.is_dir() else rights & _OF_FILES, descriptor)
    failed = libc.syscall(_LANDLOCK_ADD, rules, _RULE_PATH, rule, 0)
    os.close(descriptor)
    if failed:
        raise ConfinementMissing(f"Landlock, {path}: {os.strerror(ctypes.get_errno())}")


def filter_calls() -> None:
    """Deny this process, which must have one thread, sockets, processes and programs.

    Before `restrict_files`, after which the threads cannot be counted. Raises ConfinementMissing.
    """
    libc, machine = _prepared(), platform.machine()
    if machine not in _DENIED:
        raise ConfinementMissing(f"no filter of system calls is known for {machine}")
    steps = _filter(*_DENIED[machine])
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(
        struct.pack("@HxxxxxxQ", len(steps), ctypes.addressof(code))
    )
    if libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, program, 0, 0):
        raise ConfinementMissing(f"seccomp: {os.strerror(ctypes.get_errno())}")


def _prepared() -> ctypes.CDLL:
    """The C library, in a process that may be confined. Raises ConfinementMissing."""
    if len(os.listdir("/proc/self/task")) != 1:
        raise ConfinementMissing("the process has several threads, of which one would be confined")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise ConfinementMissing(f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    return libc


def _filter(
    architecture: int, clone: int, denied: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    """BPF: kill on another architecture, deny the numbers, allow the rest (linux/seccomp.h).

    Lines of (code, jump if true, jump if false, operand). `clone` makes threads only; glibc takes
    it where `clone3`, whose flags a filter cannot read, does not exist.
    """
    return [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_FROM, 0, 1, _OTHER_NUMBERS),
        (_RETURN, 0, 0, _DENY),
        (_JUMP_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _UNKNOWN),
        (_JUMP_EQUAL, 0, 4, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_JUMP_IF_SET, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _DENY),
        *((_JUMP_EQUAL, len(denied) - index, 0, number) for index, number in enumerate(denied)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _DENY),
    ]
