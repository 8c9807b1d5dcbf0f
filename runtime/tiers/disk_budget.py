"""The byte budget of a node's disk cache, evicting models for downloads, and the cache's locks.

Evicts the least recently used models that no process reads or maps, no more than necessary, and
none if the download would not fit even then. The files on disk are the only account of used space:
a download reserves its space before its first byte, so pods that share a cache agree on the used
space, also after a crash.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from common.sizes import shown_bytes
from registry.domain.model import ModelName, name_of_key
from runtime.errors import DiskFull, LoadFailed, ModelTooLarge, StorageFailed
from runtime.metrics import DISK_EVICTED_BYTES, DISK_EVICTIONS
from runtime.storage.listing import RemoteFile
from runtime.storage.partial_file import PARTIAL_SUFFIX, PartialFile, file_bytes, folder_bytes
from runtime.tiers.generation_folder import key_of_cache_name

logger = logging.getLogger(__name__)

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
    """Locks of one cache folder, between the pods of a node. Raise StorageFailed, DiskFull.

    The kernel releases a process's locks when it ends. Each generation has two: `use`, shared by
    readers and exclusive for deletion (its file's time is the time of the last use), and `fetch`,
    for the one process that downloads. `room` is held while the cache is measured and space
    reserved.
    """

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


_QUOTAS = "quotas in the tenant's ConfigMap, or --quotas of `pilotlight up`"
DEFAULT_SHARE = 0.8
"""Budget without a configured one, as a share of the space that is free for the cache now."""


class DiskBudget:
    """Reserves space in a cache folder."""

    def __init__(
        self,
        folder: Path,
        locks: CacheLocks,
        budget_bytes: int,
        quota_of: Callable[[str], int | None] = lambda _namespace: None,
    ) -> None:
        self._quota_of = quota_of
        self._folder = folder
        self._locks = locks
        self._configured_bytes = budget_bytes

    @property
    def budget_bytes(self) -> int:
        """As configured, or a share of the disk's free space: other programs take and free it."""
        return self._configured_bytes or int(
            DEFAULT_SHARE * (free_bytes(self._folder) + self.used_bytes())
        )

    def generations(self) -> dict[str, Path]:
        """The folders of all generations by their models' keys; raises OSError."""
        try:
            paths = sorted(self._folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):  # the whole cache was deleted
            return {}
        return {key: path for path in paths if (key := key_of_cache_name(path.name)) is not None}

    def used_bytes(self) -> int:
        """Bytes of all files in the cache; files under download count in full."""
        return sum(folder_bytes(folder) for folder in self.generations().values())

    def open_partials(
        self, files: Sequence[RemoteFile], folder: Path, stack: ExitStack
    ) -> list[PartialFile]:
        """Partial files in `folder` with their space reserved.

        `stack` closes them. Creates none if there is no space; raises DiskFull, ModelTooLarge,
        OSError.
        """
        needed = sum(file.size_bytes for file in files)
        budget_bytes = self.budget_bytes
        if needed > budget_bytes:
            # What others take of the disk may be freed; a configured budget stays as it is.
            raise (ModelTooLarge if self._configured_bytes else DiskFull)(
                f"{model_of(folder)} needs {shown_bytes(needed)} on disk, more than"
                f" {self._describe(budget_bytes)}"
            )
        quota = self._quota_of(_namespace(folder))
        if quota is not None and needed > quota:
            raise ModelTooLarge(
                f"{model_of(folder)} needs {shown_bytes(needed)} on disk, its namespace's quota of"
                f" cache is {shown_bytes(quota)}: raise {_QUOTAS}"
            )
        with self._locks.lock_budget():
            present = sum(file_bytes(folder / f"{file.path}{PARTIAL_SUFFIX}") for file in files)
            self._evict_for(needed - present, folder)
            partials = [
                stack.enter_context(PartialFile(folder / file.path, file)) for file in files
            ]
            for partial in partials:
                partial.allocate()
        return partials

    def _evict_for(self, needed: int, for_folder: Path) -> None:
        """A namespace at its quota evicts its own models first; raises DiskFull."""
        folders = list(self.generations().values())
        quota = self._quota_of(_namespace(for_folder))
        own = [path for path in folders if _namespace(path) == _namespace(for_folder)]
        with ExitStack() as stack:
            evicted: list[tuple[Path, int]] = []
            if quota is not None:
                excess = sum(map(folder_bytes, own)) + needed - quota
                limit = f"its namespace's quota of {shown_bytes(quota)}: raise {_QUOTAS}"
                evicted += self._choose_evictions(own, excess, for_folder, stack, limit=limit)
            others = [path for path in folders if path not in {path for path, _ in evicted}]
            budget_bytes = self.budget_bytes
            excess = sum(map(folder_bytes, others)) + needed - budget_bytes
            limit = self._describe(budget_bytes)
            evicted += self._choose_evictions(others, excess, for_folder, stack, limit=limit)
            for folder, size in evicted:
                shutil.rmtree(folder, ignore_errors=True)  # memory maps of the files stay valid
                self._locks.remove(folder.name)
                DISK_EVICTIONS.labels(reason="budget").inc()
                DISK_EVICTED_BYTES.inc(size)
                logger.info(
                    "model evicted from disk",
                    extra={"folder": folder.name, "bytes": size, "evicted_for": for_folder.name},
                )

    def _describe(self, budget_bytes: int) -> str:
        """The budget: as configured, or by what the file system has free."""
        if self._configured_bytes:
            return (
                f"the node's disk budget of {shown_bytes(budget_bytes)}: raise the pod's"
                " --disk-bytes, or --pod-disk of `pilotlight up`"
            )
        return (
            f"the {shown_bytes(budget_bytes)} that models may take in {self._folder}, whose file"
            f" system has {shown_bytes(free_bytes(self._folder))} free (four fifths of"
            " these and of what models take there): free some space, or give the cache another"
            " folder"
        )

    def _choose_evictions(
        self,
        folders: Sequence[Path],
        excess: int,
        for_folder: Path,
        stack: ExitStack,
        *,
        limit: str,
    ) -> list[tuple[Path, int]]:
        """Unused folders of at least `excess` bytes, locked until `stack` ends; raises DiskFull."""
        if excess <= 0:
            return []
        chosen: list[tuple[Path, int]] = []
        freed = 0
        for folder in sorted(
            folders, key=lambda path: (self._locks.last_used_ns(path.name), path.name)
        ):
            if freed >= excess:
                break
            lock = None if folder == for_folder else self._locks.try_lock_for_deletion(folder.name)
            if lock is not None:
                stack.enter_context(lock)
                chosen.append((folder, folder_bytes(folder)))
                freed += chosen[-1][1]
        if freed < excess:
            raise DiskFull(
                f"{model_of(for_folder)} needs {shown_bytes(excess)} more than is left, and all but"
                f" {shown_bytes(freed)} belong to models in use; the limit is {limit}"
            )
        for candidate in reversed(tuple(chosen)):  # keep the most recently used that fit
            if freed - candidate[1] >= excess:
                chosen.remove(candidate)
                freed -= candidate[1]
        return chosen


def model_of(folder: Path) -> ModelName:
    return name_of_key(key_of_cache_name(folder.name) or "")


def _namespace(folder: Path) -> str:
    return model_of(folder).namespace
