"""The byte budget of a node's disk cache: evicts models so that a download fits.

Evicts the least recently used models that no process reads or maps, no more than necessary, and
none if the download would not fit even then. The files on disk are the only account of used space:
a download reserves its space before its first byte, so pods that share a cache agree on the used
space, also after a crash.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from common.sizes import shown_bytes
from registry.domain.model import ModelName, name_of_key
from runtime.errors import DiskFull, ModelTooLarge
from runtime.metrics import DISK_EVICTED_BYTES, DISK_EVICTIONS
from runtime.storage.file import file_bytes, folder_bytes
from runtime.storage.listing import RemoteFile
from runtime.storage.partial_file import PARTIAL_SUFFIX, PartialFile
from runtime.tiers.cache_locks import CacheLocks, free_bytes
from runtime.tiers.generation_folder import key_of_cache_name

logger = logging.getLogger(__name__)

_QUOTAS = "the pool's annotation pilotlight.io/quotas, or --quotas of `pilotlight up`"
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
                remove_generation(folder)
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


def remove_generation(folder: Path) -> None:
    """Delete a generation's files; existing memory maps of them stay valid."""
    shutil.rmtree(folder, ignore_errors=True)
