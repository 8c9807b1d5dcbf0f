"""Tier `disk`: the node's folder of model files, shared by its pods and kept over restarts.

One folder per model generation. A file is written under another name and gets its own once it is
complete and checked, so a name in the folder always means a complete file; a mapped file is never
rewritten. Methods block and are called in threads, unless they say otherwise.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from registry.domain.model import ModelSpec
from runtime.errors import StorageFailed
from runtime.storage.bandwidth import Bandwidth
from runtime.storage.declared_files import OWN_ENGINES, FileRules
from runtime.storage.listing import RemoteFile
from runtime.storage.load_ticket import LoadTicket
from runtime.storage.partial_file import partial_targets, remove_partial, remove_stale_partials
from runtime.tiers.cache_locks import CacheLocks, FileLock
from runtime.tiers.disk_budget import DiskBudget, remove_generation
from runtime.tiers.generation_download import GenerationDownloader
from runtime.tiers.generation_folder import STAGING, GenerationFolder, cache_name

if TYPE_CHECKING:
    from runtime.storage.storages import ModelStorage, Storages
    from runtime.tiers.download_progress import DownloadProgress


class DiskCache:
    """The models in `folder`: fetched on demand, evicted within a budget."""

    def __init__(
        self,
        folder: Path,
        storages: Storages,
        bandwidth: Bandwidth,
        *,
        budget_bytes: int = 0,
        quota_of: Callable[[str], int | None] = lambda _namespace: None,
        rules: FileRules = OWN_ENGINES,
    ) -> None:
        """`quota_of`: bytes that the models of a namespace may take; None: any."""
        self._folder = folder
        self._rules = rules
        self._weight_bytes: dict[str, int] = {}
        """Per model with any file here: bytes of its weights, 0 unless they are complete.

        Entries are replaced one by one, so the event loop may read while a thread writes."""
        self._asset_bytes: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._locks = CacheLocks(folder)
        self._budget = DiskBudget(folder, self._locks, budget_bytes, quota_of)
        self._downloader = GenerationDownloader(
            storages, bandwidth, self._locks, self._budget, rules
        )
        self._remove_stale_partials()
        self.refresh()

    def close(self) -> None:
        """End downloads under way, keeping what they have written, and close all connections."""
        self._downloader.bandwidth.close()
        self._locks.close()
        self._downloader.storages.close()

    # State of the last refresh; these do not block

    def keys(self) -> set[str]:
        """Models with any file here."""
        return set(self._weight_bytes)

    def bytes_on_disk(self, key: str) -> int:
        """Bytes of a model's weights; 0 unless they are complete."""
        return self._weight_bytes.get(key, 0)

    def asset_bytes(self, key: str) -> int:
        """Bytes of a model's small files, once fetched by this pod."""
        return self._asset_bytes.get(key, 0)

    def used_bytes(self) -> int:
        """Bytes of all complete weights."""
        return sum(list(self._weight_bytes.values()))

    def folder_of(self, key: str) -> Path:
        """The folder of a generation, which may not exist."""
        return self._folder / cache_name(key)

    def refresh(self) -> set[str]:
        """Read the folder, which other pods change too; returns the models that changed.

        Raises OSError if the folder cannot be read.
        """
        found = {
            key: GenerationFolder(path, self._rules).complete_bytes()
            for key, path in self._budget.generations().items()
        }
        changed = {
            key
            for key in found.keys() | self._weight_bytes.keys()
            if found.get(key) != self._weight_bytes.get(key)
        }
        for key in changed:
            if key in found:
                self._weight_bytes[key] = found[key]
            else:
                self._forget(key)
        return changed

    # Use

    def lock_for_use(self, key: str) -> FileLock:
        """Protect a model's files from deletion while they are read or mapped."""
        return self._locks.lock_for_use(cache_name(key))

    def fetch_assets(self, spec: ModelSpec) -> Path:
        """The model's folder with its listing and small files; raises LoadFailed."""
        generation = self._generation(spec.key)
        with self.lock_for_use(spec.key):
            listing = self._downloader.listing(spec, generation)
            self._weight_bytes.setdefault(spec.key, 0)
            assets = self._rules.assets(listing, spec.storage_uri)
            self._downloader.ensure(spec, generation, assets)
            self._asset_bytes[spec.key] = sum(file.size_bytes for file in assets)
        return generation.path

    def weight_files(self, spec: ModelSpec) -> tuple[RemoteFile, ...]:
        """The files of weights of a model whose assets were fetched; raises LoadFailed."""
        files = self._generation(spec.key).weight_files(spec.storage_uri)
        if files is None:
            raise StorageFailed(f"the cached files of {spec.key} are gone")
        return files

    def source(self, spec: ModelSpec) -> ModelStorage:
        """The storage that the model's files are fetched from; raises StorageFailed."""
        return self._downloader.open_storage(spec, self._generation(spec.key))

    def has_weights(self, key: str) -> bool:
        """Whether every file of weights is here with its size."""
        size_bytes = self._generation(key).complete_bytes()
        if size_bytes or key in self._weight_bytes:
            self._weight_bytes[key] = size_bytes
        return size_bytes > 0

    def fetch_weights(
        self,
        spec: ModelSpec,
        ticket: LoadTicket | None = None,
        progress: DownloadProgress | None = None,
    ) -> tuple[Path, ...]:
        """Fetch the missing files of weights; raises LoadFailed, LoadCancelled.

        Args:
            spec: a model whose small files are here.
            ticket: its priority and cancellation; urgent by default.
            progress: receives the bytes as they arrive, and the end of a successful fetch.
        """
        generation = self._generation(spec.key)
        with self.lock_for_use(spec.key):
            files = self.weight_files(spec)
            self._downloader.ensure(spec, generation, files, ticket=ticket, progress=progress)
            shutil.rmtree(generation.path / STAGING, ignore_errors=True)
            self._weight_bytes[spec.key] = sum(file.size_bytes for file in files)
            if progress is not None:
                progress.add_complete(generation.path)
                progress.finish()
        return tuple(generation.path / file.path for file in files)

    def discard_partial(self, key: str) -> None:
        """Delete the unfinished files of a model, unless another process downloads them."""
        folder = self.folder_of(key)
        lock = self._locks.try_lock_for_download(folder.name)
        if lock is not None:
            with lock:
                for target in partial_targets(folder):
                    remove_partial(target)

    def discard(self, key: str) -> None:
        """Delete the files of a generation, unless another pod uses them.

        Raises StorageFailed, OSError.
        """
        folder = self.folder_of(key)
        lock = self._locks.try_lock_for_deletion(folder.name)
        if lock is None:
            return
        with lock:
            remove_generation(folder)
            self._locks.remove(folder.name)
        self._forget(key)

    def _generation(self, key: str) -> GenerationFolder:
        return GenerationFolder(self.folder_of(key), self._rules)

    def _forget(self, key: str) -> None:
        self._weight_bytes.pop(key, None)
        self._asset_bytes.pop(key, None)

    def _remove_stale_partials(self) -> None:
        """Delete unfinished downloads of an earlier boot, unless another pod uses the folder."""
        for folder in self._budget.generations().values():
            lock = self._locks.try_lock_for_deletion(folder.name)
            if lock is not None:
                with lock:
                    remove_stale_partials(folder)
