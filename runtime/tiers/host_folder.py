"""The folder of tier `host` on a node: made, entered and left by the pods of that node.

Who is inside holds a shared lock that dies with its process. Who leaves last clears the folder:
memory that no pod uses would otherwise stay taken until the node restarts.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMBERS = ".pods"
CHANGES = ".lock"
DEFAULT_BASE = Path("/dev/shm")


class HostFolderUnusable(Exception):
    """The folder cannot be used; the message says why and what to do."""


class HostFolder:
    """An entered folder. Methods block."""

    def __init__(self, path: Path, budget_bytes: int) -> None:
        """Enter, making the folder if need be; raises HostFolderUnusable."""
        self.path = path
        try:
            self._members = self._enter()
        except OSError as error:
            raise HostFolderUnusable(f"{path} cannot be used: {error}") from error
        try:
            _check_place(path, budget_bytes)
        except HostFolderUnusable:
            self.leave()
            raise

    def _enter(self) -> int:
        while True:
            if self.path.is_relative_to(DEFAULT_BASE) and not DEFAULT_BASE.is_dir():
                raise FileNotFoundError(f"there is no {DEFAULT_BASE}")
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                descriptor = os.open(self.path / MEMBERS, flags, 0o600)
            except FileNotFoundError:
                continue  # the last pod cleared the folder just now
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the folder's own lock: one pod at a time adds and deletes."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.path / CHANGES, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def leave(self) -> None:
        """Leave; the last one clears the folder."""
        try:
            fcntl.flock(self._members, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self.path, ignore_errors=True)
        except BlockingIOError:
            pass  # others are inside
        finally:
            os.close(self._members)


def lock_if_free(descriptor: int, operation: int) -> bool:
    """Take a lock of an open file at once, or not at all."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_place(path: Path, budget_bytes: int) -> None:
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise HostFolderUnusable(
            f"{path} must be a folder of user {os.getuid()} that others cannot write to,"
            f" is of user {facts.st_uid} with mode {stat.S_IMODE(facts.st_mode):o}"
        )
    system = os.statvfs(path)
    size = system.f_frsize * system.f_blocks
    if size < budget_bytes:
        raise HostFolderUnusable(
            f"the file system of {path} has {size} bytes, fewer than the budget of {budget_bytes};"
            " lower host-bytes, or mount a larger emptyDir with `medium: Memory` there"
        )
