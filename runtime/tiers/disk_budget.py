"""The byte budget of a node's disk cache: evicts models so that a download fits.

Evicts the least recently used models that no process reads or maps, no more than necessary, and
none if the download would not fit even then. The files on disk are the only account of used space:
a download reserves its space before its first byte, so pods that share a cache agree on the used
space, also after a crash.
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING

from runtime.errors import DiskFull, LoadFailed, StorageFailed
from runtime.metrics import DISK_EVICTED_BYTES, DISK_EVICTIONS
from runtime.storage.file import file_bytes, folder_bytes
from runtime.storage.partial_file import PARTIAL_SUFFIX, PartialFile
from runtime.tiers.cache_locks import DISK_FULL_ERRORS, CacheLocks
from runtime.tiers.generation_folder import key_of_cache_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runtime.storage.listing import RemoteFile

logger = logging.getLogger(__name__)

DEFAULT_SHARE = 0.8
"""Budget without a configured one, as a share of the space that is free for the cache at start."""


class DiskBudget:
    """Reserves space in a cache folder."""

    def __init__(self, folder: Path, locks: CacheLocks, budget_bytes: int) -> None:
        self._folder = folder
        self._locks = locks
        self.budget_bytes = budget_bytes or int(
            DEFAULT_SHARE * (shutil.disk_usage(folder).free + self.used_bytes())
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
        """Partial files in `folder` with their space reserved; raises DiskFull, OSError.

        `stack` closes them. Creates none if there is no space.
        """
        needed = sum(file.size_bytes for file in files)
        if needed > self.budget_bytes:
            raise DiskFull(
                f"{folder.name} needs {needed} bytes on disk, the node's disk budget is"
                f" {self.budget_bytes} bytes: raise --disk-bytes"
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
        excess = self.used_bytes() + needed - self.budget_bytes
        if excess <= 0:
            return
        with ExitStack() as stack:
            for folder, size in self._choose_evictions(excess, for_folder, stack):
                remove_generation(folder)
                self._locks.remove(folder.name)
                DISK_EVICTIONS.labels(reason="budget").inc()
                DISK_EVICTED_BYTES.inc(size)
                logger.info(
                    "model evicted from disk",
                    extra={"folder": folder.name, "bytes": size, "evicted_for": for_folder.name},
                )

    def _choose_evictions(
        self, excess: int, for_folder: Path, stack: ExitStack
    ) -> list[tuple[Path, int]]:
        """Unused folders of at least `excess` bytes, locked until `stack` ends; raises DiskFull."""
        chosen: list[tuple[Path, int]] = []
        freed = 0
        for folder in sorted(
            self.generations().values(),
            key=lambda path: (self._locks.last_used_ns(path.name), path.name),
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
                f"{for_folder.name} needs {excess} bytes more than the node's disk budget of"
                f" {self.budget_bytes} leaves; all but {freed} bytes belong to models in use"
            )
        for candidate in reversed(tuple(chosen)):  # keep the most recently used that fit
            if freed - candidate[1] >= excess:
                chosen.remove(candidate)
                freed -= candidate[1]
        return chosen


def write_error(error: OSError, folder: Path, needed: int) -> LoadFailed:
    """The failure of a load for an error of writing `needed` bytes into a generation's folder."""
    if error.errno not in DISK_FULL_ERRORS:
        return StorageFailed(f"{folder} cannot be written: {error}")
    free = shutil.disk_usage(folder.parent).free
    return DiskFull(
        f"{folder.name} needs {needed} bytes on disk, {folder.parent} has {free} free"
        f" ({os.strerror(error.errno or 0)}): free some space, or give the cache another folder"
    )


def remove_generation(folder: Path) -> None:
    """Delete a generation's files; existing memory maps of them stay valid."""
    shutil.rmtree(folder, ignore_errors=True)
