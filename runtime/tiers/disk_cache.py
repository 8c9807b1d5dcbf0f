"""Tier `disk`: the node's folder of model files, shared by its pods and kept over restarts.

One folder per model generation. A file is written under another name and gets its own once it is
complete and checked, so a name in the folder always means a complete file; a mapped file is never
rewritten. Methods block and are called in threads, unless they say otherwise.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from common.sizes import shown_bytes
from registry.domain.model import ModelSpec
from runtime.errors import ModelInvalid, StorageFailed
from runtime.storage.archives import Archive
from runtime.storage.declared_files import OWN_ENGINES, FileRules, archive_hint, only_archive
from runtime.storage.listing import RemoteFile
from runtime.storage.load_priority import LoadTicket
from runtime.storage.partial_file import (
    PartialFile,
    partial_targets,
    remove_partial,
    remove_stale_partials,
)
from runtime.storage.ranged_download import Bandwidth, BandwidthUse
from runtime.storage.storages import ModelStorage, Storages
from runtime.tiers.disk_budget import CacheLocks, DiskBudget, FileLock, model_of, write_error
from runtime.tiers.generation_folder import STAGING, GenerationFolder, cache_name

MAX_READERS = 16
"""Of one load: those of its files that come at once share them."""


@dataclass(frozen=True, slots=True)
class GenerationDownloader:
    """Fetches files from storage: one pod of a node downloads, the others wait. Blocks."""

    storages: Storages
    bandwidth: Bandwidth
    locks: CacheLocks
    budget: DiskBudget
    rules: FileRules = OWN_ENGINES

    def listing(
        self, spec: ModelSpec, generation: GenerationFolder, ticket: LoadTicket
    ) -> tuple[RemoteFile, ...]:
        """The model's files, from the folder or from storage; raises LoadFailed, LoadCancelled.

        Files of the folder are the model's only if whoever it is read as today listed them: grants
        and credentials change.
        """
        reader = self.storages.reader(spec)
        listing = _listing_by(reader, generation)
        if listing is not None:
            return listing
        with self.locks.lock_for_download(generation.path.name, ticket.raise_if_cancelled):
            listing = _listing_by(reader, generation)
            if listing is None:
                storage = self.open_storage(spec, generation, ticket)
                found = storage.list_files()
                archive = only_archive(found, spec.storage_uri)
                try:
                    if archive is None:
                        listing = self._declared(spec, found)
                    else:
                        listing = self._unpack(spec, generation, storage, archive, ticket)
                    generation.write_listing(listing, reader)
                except OSError as error:
                    what = f"the list of files of {spec.name}"
                    raise write_error(error, generation.path.parent, what) from error
        return listing

    def _declared(self, spec: ModelSpec, found: Sequence[RemoteFile]) -> tuple[RemoteFile, ...]:
        """The files of the model that is declared; refused before anything is written."""
        uri = spec.storage_uri
        try:
            chosen = self.rules.declared(found, spec.format, uri)
            self.rules.assets(chosen, uri)
        except ModelInvalid as error:
            if hint := archive_hint(found):
                raise type(error)(f"{error}{hint}") from error
            raise
        return chosen

    def _unpack(
        self,
        spec: ModelSpec,
        generation: GenerationFolder,
        storage: ModelStorage,
        file: RemoteFile,
        ticket: LoadTicket,
    ) -> tuple[RemoteFile, ...]:
        """The archive's members as the model's files, of which the declared ones are on disk then.

        What is downloaded of the archive stays for the next attempt, if this one is interrupted.
        """
        chosen: tuple[RemoteFile, ...] = ()
        is_done = False
        with ExitStack() as stack:
            (packed,) = self.budget.open_partials([file], generation.path, stack)
            try:
                use = stack.enter_context(self.bandwidth.use(ticket))
                storage.fetch(packed, use, MAX_READERS)
                archive = Archive(packed.path, file, spec.storage_uri)
                chosen = self._declared(spec, archive.list_files())
                members = self.budget.open_partials(chosen, generation.path, stack)
                archive.unpack(members)
                for member in members:
                    generation.finish(member)
                is_done = True
            except ModelInvalid:
                is_done = True  # another attempt needs another archive
                raise
            finally:
                for each in (*chosen, *((file,) if is_done else ())):
                    remove_partial(generation.path / each.path)
        return chosen

    def ensure(
        self,
        spec: ModelSpec,
        generation: GenerationFolder,
        files: Sequence[RemoteFile],
        ticket: LoadTicket,
    ) -> None:
        """Fetch those of `files` that are missing or damaged; raises LoadFailed, LoadCancelled."""
        if not generation.missing_or_damaged(files):
            return
        with self.locks.lock_for_download(generation.path.name, ticket.raise_if_cancelled):
            missing = generation.missing_or_damaged(files)  # another process may have fetched some
            if not missing:
                return
            try:
                with self.bandwidth.use(ticket) as bandwidth:
                    storage = self.open_storage(spec, generation, ticket)
                    self._fetch_all(storage, missing, generation, bandwidth)
            except (OSError, ModelInvalid) as error:
                for file in missing:
                    remove_partial(generation.path / file.path)
                if isinstance(error, ModelInvalid):
                    raise  # another version of the file, or a wrong checksum
                needed = sum(file.size_bytes for file in missing)
                what = f"{shown_bytes(needed)} of {model_of(generation.path)}"
                raise write_error(error, generation.path.parent, what) from error

    def open_storage(
        self, spec: ModelSpec, generation: GenerationFolder, ticket: LoadTicket
    ) -> ModelStorage:
        """Where the model's files are; raises LoadFailed, LoadCancelled."""
        return self.storages.open(spec, generation.path / STAGING, ticket)

    def _fetch_all(
        self,
        storage: ModelStorage,
        files: Sequence[RemoteFile],
        generation: GenerationFolder,
        bandwidth: BandwidthUse,
    ) -> None:
        for file in files:
            (generation.path / file.path).unlink(missing_ok=True)

        def fetch(partial: PartialFile) -> None:
            storage.fetch(partial, bandwidth, max(1, MAX_READERS // len(files)))
            generation.finish(partial)

        with ExitStack() as stack:
            partials = self.budget.open_partials(files, generation.path, stack)
            with ThreadPoolExecutor(min(MAX_READERS, len(files))) as pool:
                fetches = [pool.submit(fetch, partial) for partial in partials]
            for each in fetches:
                each.result()


def _listing_by(reader: str, generation: GenerationFolder) -> tuple[RemoteFile, ...] | None:
    return generation.listing() if generation.reader() == reader else None


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

    def fetch_assets(self, spec: ModelSpec, ticket: LoadTicket | None = None) -> Path:
        """The model's folder with its listing and small files; raises LoadFailed, LoadCancelled."""
        generation, ticket = self._generation(spec.key), ticket or LoadTicket()
        with self.lock_for_use(spec.key):
            listing = self._downloader.listing(spec, generation, ticket)
            self._weight_bytes.setdefault(spec.key, 0)
            assets = self._rules.assets(listing, spec.storage_uri)
            self._downloader.ensure(spec, generation, assets, ticket)
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
        return self._downloader.open_storage(spec, self._generation(spec.key), LoadTicket())

    def has_weights(self, key: str) -> bool:
        """Whether every file of weights is here with its size."""
        size_bytes = self._generation(key).complete_bytes()
        if size_bytes or key in self._weight_bytes:
            self._weight_bytes[key] = size_bytes
        return size_bytes > 0

    def fetch_weights(self, spec: ModelSpec, ticket: LoadTicket | None = None) -> tuple[Path, ...]:
        """Fetch the missing files of weights; raises LoadFailed, LoadCancelled.

        `spec`: a model whose small files are here; `ticket`: urgent by default.
        """
        generation = self._generation(spec.key)
        with self.lock_for_use(spec.key):
            files = self.weight_files(spec)
            self._downloader.ensure(spec, generation, files, ticket or LoadTicket())
            shutil.rmtree(generation.path / STAGING, ignore_errors=True)
            self._weight_bytes[spec.key] = sum(file.size_bytes for file in files)
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
            shutil.rmtree(folder, ignore_errors=True)  # memory maps of the files stay valid
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
