"""Locks between the pods of a node that share a disk cache, and errors of writing to it.

The kernel releases a process's locks on files when it ends, also after a crash. Each generation has
two locks: `use`, shared by readers and exclusive for deletion (the time of its file is the time of
the last use), and `fetch`, for the one process that downloads. The lock `room` is held while the
cache is measured and disk space reserved.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from common.sizes import shown_bytes
from runtime.errors import DiskFull, LoadFailed, StorageFailed

POLL_INTERVAL_S = 0.02
"""Time between attempts to lock: the kernel's own wait could not be cancelled."""
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FileLock:
    """A lock that this process holds. May be released twice."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
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
    """The locks of one cache folder. Methods raise StorageFailed, DiskFull."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / ".locks"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._closed = threading.Event()

    def close(self) -> None:
        """End all waits for downloads with StorageFailed."""
        self._closed.set()

    def lock_for_use(self, name: str) -> FileLock:
        """Protect a generation's files from deletion and record the use. May wait briefly."""
        lock = _wait_for(self._folder / f"{name}.use", fcntl.LOCK_SH)
        with contextlib.suppress(OSError):  # on a full disk the recorded use is a little older
            os.utime(self._folder / f"{name}.use")
        return lock

    def try_lock_for_deletion(self, name: str) -> FileLock | None:
        """The right to delete a generation's files; None while they are in use."""
        return _lock(self._folder / f"{name}.use", fcntl.LOCK_EX | fcntl.LOCK_NB)

    def lock_for_download(self, name: str, check: Callable[[], None] = lambda: None) -> FileLock:
        """The right to download into a generation, once no other process has it.

        Calls `check` between attempts, which may raise to end the wait.
        """
        while (lock := self.try_lock_for_download(name)) is None:
            if self._closed.wait(POLL_INTERVAL_S):
                raise StorageFailed("the pod shuts down while another one downloads")
            check()
        return lock

    def try_lock_for_download(self, name: str) -> FileLock | None:
        return _lock(self._folder / f"{name}.fetch", fcntl.LOCK_EX | fcntl.LOCK_NB)

    def lock_budget(self) -> FileLock:
        """The right to measure the cache and reserve disk space; waits for other processes."""
        return _wait_for(self._folder / "room", fcntl.LOCK_EX)

    def last_used_ns(self, name: str) -> int:
        """Time of a generation's last use; 0 if unknown."""
        try:
            return (self._folder / f"{name}.use").stat().st_mtime_ns
        except OSError:
            return 0

    def remove(self, name: str) -> None:
        """Delete the lock files of a generation that this process has locked and deleted."""
        for kind in ("use", "fetch"):
            (self._folder / f"{name}.{kind}").unlink(missing_ok=True)


def _wait_for(path: Path, operation: int) -> FileLock:
    while (lock := _lock(path, operation)) is None:
        continue  # its last holder removed the file: lock the new one
    return lock


def _lock(path: Path, operation: int) -> FileLock | None:
    """The lock, or None if another process has it; raises StorageFailed, DiskFull."""
    try:
        return _try_lock(path, operation)
    except OSError as error:
        raise write_error(error, path.parent.parent, "a lock") from error


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


def write_error(error: OSError, cache: Path, what: str) -> LoadFailed:
    """The failure where `what` cannot be written to the cache's folder."""
    if error.errno not in _DISK_FULL:
        return StorageFailed(f"{what} cannot be written to the disk cache {cache}: {error}")
    return DiskFull(
        f"{what} cannot be written to the disk cache {cache}, whose file system has"
        f" {shown_bytes(free_bytes(cache))} free ({os.strerror(error.errno or 0)}): free some"
        " space, or give the cache another folder (PILOTLIGHT_CACHE_DIR; --home of `pilotlight up`)"
    )


def free_bytes(cache: Path) -> int:
    """What the file system of the cache has free, which may be nobody's folder any more."""
    while not cache.exists():
        cache = cache.parent
    return shutil.disk_usage(cache).free
