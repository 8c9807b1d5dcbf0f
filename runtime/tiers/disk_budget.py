"""The byte budget of a node's disk cache: what leaves it so that a download fits.

Models that nobody reads or has mapped leave, the least recently used first, and no more than is
needed; nothing leaves in vain. The files on disk are the only account, so pods that share a cache
agree however they die: a download's space is set aside before its first byte.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING

from runtime.errors import DiskFull
from runtime.metrics import DISK_EVICTED_BYTES, DISK_EVICTIONS
from runtime.storage.partial_file import PARTIAL_SUFFIX, PartialFile
from runtime.tiers.file_names import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runtime.storage.listing import RemoteFile
    from runtime.tiers.cache_locks import CacheLocks, FileLock

logger = logging.getLogger(__name__)

DEFAULT_SHARE = 0.8
"""Of what the disk had free for us at start, where no budget is stated."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskBudget:
    """Sets space aside in a cache folder."""

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
        return {key: path for path in paths if (key := key_of(path.name)) is not None}

    def used_bytes(self) -> int:
        """Bytes of all models' files in the cache, those on their way whole."""
        return sum(_bytes_below(folder) for folder in self.generations().values())

    def open(
        self, files: Sequence[RemoteFile], folder: Path, stack: ExitStack
    ) -> list[PartialFile]:
        """Files on their way into `folder`, their space set aside; raises DiskFull, OSError.

        What was opened is closed with `stack`. Where the space is not there, nothing is left.
        """
        needed = sum(file.size_bytes for file in files)
        if needed > self.budget_bytes:
            raise DiskFull(
                f"{folder.name} needs {needed} bytes on disk, the node's disk budget is"
                f" {self.budget_bytes} bytes: raise --disk-bytes"
            )
        with self._locks.room():
            begun = sum(_size(folder / f"{file.path}{PARTIAL_SUFFIX}") for file in files)
            self._make_room(needed - begun, folder)
            partials = [
                stack.enter_context(PartialFile(folder / file.path, file)) for file in files
            ]
            for partial in partials:
                partial.allocate()
        return partials

    def _make_room(self, needed: int, for_folder: Path) -> None:
        excess = self.used_bytes() + needed - self.budget_bytes
        if excess <= 0:
            return
        with ExitStack() as stack:
            victims = self._victims(excess, for_folder, stack)
            for folder, size in victims:
                remove_generation(folder)
                self._locks.forget(folder.name)
                DISK_EVICTIONS.labels(reason="budget").inc()
                DISK_EVICTED_BYTES.inc(size)
                logger.info(
                    "model left the disk",
                    extra={"folder": folder.name, "bytes": size, "made_room_for": for_folder.name},
                )

    def _victims(self, excess: int, for_folder: Path, stack: ExitStack) -> list[tuple[Path, int]]:
        """Unused folders of `excess` bytes together, owned until `stack` ends; raises DiskFull."""
        chosen: list[tuple[Path, int, FileLock]] = []
        for folder in sorted(
            self.generations().values(),
            key=lambda path: (self._locks.last_used_ns(path.name), path.name),
        ):
            if sum(size for _, size, _ in chosen) >= excess:
                break
            lock = None if folder == for_folder else self._locks.own(folder.name)
            if lock is not None:
                stack.enter_context(lock)
                chosen.append((folder, _bytes_below(folder), lock))
        freed = sum(size for _, size, _ in chosen)
        if freed < excess:
            raise DiskFull(
                f"{for_folder.name} needs {excess} bytes more on disk than the node's budget of"
                f" {self.budget_bytes} leaves; all but {freed} are of models in use"
            )
        for victim in reversed(tuple(chosen)):  # spare who is not needed after all
            if freed - victim[1] >= excess:
                chosen.remove(victim)
                freed -= victim[1]
        return [(folder, size) for folder, size, _ in chosen]


def disk_full(error: OSError, folder: Path, needed: int) -> DiskFull | None:
    """What a write error means, where it means that the disk is full."""
    if error.errno not in FULL:
        return None
    free = shutil.disk_usage(folder.parent).free
    return DiskFull(
        f"{folder.name} needs {needed} bytes on disk, {folder.parent} has {free} free"
        f" ({os.strerror(error.errno or 0)}): free some, or give the cache another folder"
    )


def remove_generation(folder: Path) -> None:
    """Delete a generation's files; a network that has them mapped keeps them."""
    shutil.rmtree(folder, ignore_errors=True)


def _bytes_below(folder: Path) -> int:
    return sum(
        _size(os.path.join(parent, name)) for parent, _, names in os.walk(folder) for name in names
    )


def _size(path: str | Path) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return 0
