"""Locks between the pods of a node that share a disk cache: the kernel's, on files.

A lock ends with the process that holds it, however it dies. Each generation has two: `use`, shared
by whoever reads or maps its files and taken whole by who deletes them (its file's time is that of
the last use), and `fetch`, held by the one process that downloads. `room` is held while the cache
is measured and disk space set aside.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from typing import TYPE_CHECKING, Self

from runtime.errors import DiskFull, StorageFailed
from runtime.tiers.disk_budget import FULL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOOK_EVERY_S = 0.02
"""A waiter asks again this often: the kernel's own wait could not be given up."""


class FileLock:
    """A lock that is held; released once, by whoever comes first."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let go; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class CacheLocks:
    """The locks of one cache folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / ".locks"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._closed = threading.Event()

    def use(self, name: str) -> FileLock:
        """Keep a generation's files from being deleted; marks it as used now. May wait briefly."""
        held = _wait_for(self._folder / f"{name}.use", fcntl.LOCK_SH)
        with contextlib.suppress(OSError):  # on a full disk the order of use is a little older
            os.utime(self._folder / f"{name}.use")
        return held

    def own(self, name: str) -> FileLock | None:
        """The right to delete a generation's files; None while anybody uses them."""
        return _lock(self._folder / f"{name}.use", fcntl.LOCK_EX | fcntl.LOCK_NB)

    def fetch(self, name: str, check: Callable[[], None] = lambda: None) -> FileLock:
        """The right to download into a generation; waits for who has it, until `close`.

        `check` is called meanwhile, and may raise to end the wait.
        """
        while (held := self.fetch_if_free(name)) is None:
            if self._closed.wait(LOOK_EVERY_S):
                raise StorageFailed("the pod shuts down while another one downloads")
            check()
        return held

    def fetch_if_free(self, name: str) -> FileLock | None:
        """The right to download into a generation; None while somebody has it."""
        return _lock(self._folder / f"{name}.fetch", fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Let nobody wait for a download any more."""
        self._closed.set()

    def room(self) -> FileLock:
        """The right to measure the cache and set space aside; waits for who has it."""
        return _wait_for(self._folder / "room", fcntl.LOCK_EX)

    def last_used_ns(self, name: str) -> int:
        """When a generation was last used; 0 where that is not known."""
        try:
            return (self._folder / f"{name}.use").stat().st_mtime_ns
        except OSError:
            return 0

    def forget(self, name: str) -> None:
        """Remove the lock files of a generation that this process owns and has deleted."""
        for kind in ("use", "fetch"):
            (self._folder / f"{name}.{kind}").unlink(missing_ok=True)


def _wait_for(path: Path, operation: int) -> FileLock:
    while (held := _lock(path, operation)) is None:
        continue  # the file was removed by its last owner: lock the new one
    return held


def _lock(path: Path, operation: int) -> FileLock | None:
    """The lock, None where it is not free; raises StorageFailed, DiskFull."""
    try:
        return _try_lock(path, operation)
    except OSError as error:
        failure = DiskFull if error.errno in FULL else StorageFailed
        raise failure(f"the disk cache {path.parent.parent} cannot be used: {error}") from error


def _try_lock(path: Path, operation: int) -> FileLock | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:  # the whole cache was deleted
        path.parent.mkdir(parents=True, exist_ok=True)
        return None
    try:
        fcntl.flock(descriptor, operation)
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return FileLock(descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
