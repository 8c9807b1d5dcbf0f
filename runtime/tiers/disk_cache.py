"""The node's folder of model files: tier `disk`, shared by the node's pods, kept over restarts.

One folder per model generation. A file arrives under another name and gets its own only when it is
whole and checked, so a name in the folder always means a whole file; a mapped file is never
rewritten. However many pods want a model, one of them downloads it and the others wait for the
bytes. Methods block and are called in threads. The budget is `disk_room`'s, soundness of files
`generation_folder`'s.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from runtime.errors import LoadFailed, ModelInvalid, StorageFailed
from runtime.storage.listing import RemoteFile, asset_files
from runtime.storage.load_ticket import LoadTicket
from runtime.storage.partial_file import PARTIAL_SUFFIX, remove_partial, remove_stale_partials
from runtime.tiers.cache_locks import CacheLocks, FileLock
from runtime.tiers.disk_budget import DiskBudget, disk_full, remove_generation
from runtime.tiers.file_names import name_of
from runtime.tiers.generation_folder import STAGING, GenerationFolder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from registry.domain.model import ModelSpec
    from runtime.storage.bandwidth import Bandwidth, BandwidthUse
    from runtime.storage.partial_file import PartialFile
    from runtime.storage.storages import ModelStorage, Storages
    from runtime.tiers.download_progress import DownloadProgress

FILES_AT_ONCE = 4


class DiskCache:
    """Fetches models into `folder` and knows which of them are complete."""

    def __init__(
        self, folder: Path, storages: Storages, link: Bandwidth, *, budget_bytes: int = 0
    ) -> None:
        self._folder = folder
        self._storages = storages
        self._link = link
        self._weight_bytes: dict[str, int] = {}
        """Per model with any file here: bytes of its weights, 0 while they are not complete.

        Replaced entry by entry, so the event loop may read it while a thread writes."""
        self._asset_bytes: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._locks = CacheLocks(folder)
        self._room = DiskBudget(folder, self._locks, budget_bytes)
        self._remove_stale()
        self.refresh()

    def close(self) -> None:
        """End the downloads under way, keeping what has come, and close all connections."""
        self._link.close()
        self._locks.close()
        self._storages.close()

    # What is here

    def keys(self) -> set[str]:
        """Models with any file here."""
        return set(self._weight_bytes)

    def bytes_on_disk(self, key: str) -> int:
        """Bytes of a model's weights; 0 where they are not complete."""
        return self._weight_bytes.get(key, 0)

    def asset_bytes(self, key: str) -> int:
        """Bytes of a model's small files, once they were fetched. Reads nothing."""
        return self._asset_bytes.get(key, 0)

    def used_bytes(self) -> int:
        """Bytes of all complete weights."""
        return sum(list(self._weight_bytes.values()))

    def folder_of(self, key: str) -> Path:
        """Where the files of a generation are, or will be."""
        return self._folder / name_of(key)

    def refresh(self) -> set[str]:
        """Look again, since other pods of the node fetch and delete; the models that changed.

        Raises OSError where the folder cannot be read.
        """
        seen = {
            key: GenerationFolder(path).complete_bytes()
            for key, path in self._room.generations().items()
        }
        changed = {
            key
            for key in seen.keys() | self._weight_bytes.keys()
            if seen.get(key) != self._weight_bytes.get(key)
        }
        for key in changed:
            if key in seen:
                self._weight_bytes[key] = seen[key]
            else:
                self._forget(key)
        return changed

    # Use

    def hold(self, key: str) -> FileLock:
        """Keep a model's files from being deleted, for as long as anybody reads or maps them."""
        return self._locks.use(self.folder_of(key).name)

    def fetch_assets(self, spec: ModelSpec) -> Path:
        """Fetch the small files of a model and the listing of all; raises LoadFailed."""
        folder = self.folder_of(spec.key)
        with self.hold(spec.key):
            generation = GenerationFolder(folder)
            listing = generation.listing()
            if listing is None:
                listing = self._fetch_listing(spec)
            self._weight_bytes.setdefault(spec.key, 0)
            assets = asset_files(listing, spec.storage_uri)
            self._ensure(spec, assets)
            self._asset_bytes[spec.key] = sum(file.size_bytes for file in assets)
        return folder

    def weight_files(self, spec: ModelSpec) -> tuple[RemoteFile, ...]:
        """The files of weights of a model whose assets are here."""
        files = GenerationFolder(self.folder_of(spec.key)).weight_files(spec.storage_uri)
        if files is None:
            raise StorageFailed(f"the cached files of {spec.key} are gone")
        return files

    def has_weights(self, key: str) -> bool:
        """Whether every file of weights is here and has its size."""
        size_bytes = GenerationFolder(self.folder_of(key)).complete_bytes()
        if size_bytes or key in self._weight_bytes:
            self._weight_bytes[key] = size_bytes
        return size_bytes > 0

    def fetch_weights(
        self,
        spec: ModelSpec,
        ticket: LoadTicket | None = None,
        arrivals: DownloadProgress | None = None,
    ) -> tuple[Path, ...]:
        """Fetch the files of weights that are not here yet; raises LoadFailed, LoadCancelled.

        Args:
            spec: a model whose small files are here.
            ticket: how much it is wanted; by default somebody waits.
            arrivals: told of the bytes as they come, and of the end if that is good.
        """
        folder = self.folder_of(spec.key)
        with self.hold(spec.key):
            files = self.weight_files(spec)
            self._ensure(spec, files, ticket, arrivals)
            shutil.rmtree(folder / STAGING, ignore_errors=True)
            self._weight_bytes[spec.key] = sum(file.size_bytes for file in files)
            if arrivals is not None:
                arrivals.whole(folder)
                arrivals.finish()
        return tuple(folder / file.path for file in files)

    def discard_partial(self, key: str) -> None:
        """Give back the space of files on their way, unless another pod goes on with them."""
        folder = self.folder_of(key)
        lock = self._locks.fetch_if_free(folder.name)
        if lock is not None:
            with lock:
                for partial in folder.rglob("*" + PARTIAL_SUFFIX):
                    remove_partial(partial.with_name(partial.name.removesuffix(PARTIAL_SUFFIX)))

    def discard(self, key: str) -> None:
        """Delete the files of a generation, unless another pod of the node uses them.

        Raises StorageFailed, OSError.
        """
        folder = self.folder_of(key)
        owned = self._locks.own(folder.name)
        if owned is None:
            return
        with owned:
            remove_generation(folder)
            self._locks.forget(folder.name)
        self._forget(key)

    def _forget(self, key: str) -> None:
        self._weight_bytes.pop(key, None)
        self._asset_bytes.pop(key, None)

    # Fetching

    def _fetch_listing(self, spec: ModelSpec) -> tuple[RemoteFile, ...]:
        folder = self.folder_of(spec.key)
        generation = GenerationFolder(folder)
        with self._locks.fetch(folder.name):
            listing = generation.listing()
            if listing is None:
                listing = self._open(spec).list_files()
                asset_files(listing, spec.storage_uri)  # before anything of a bad one is kept
                try:
                    generation.write_listing(listing)
                except OSError as error:
                    raise self._write_failure(error, folder, 0) from error
        return listing

    def _open(self, spec: ModelSpec) -> ModelStorage:
        return self._storages.open(spec.storage_uri, self.folder_of(spec.key) / STAGING)

    def _ensure(
        self,
        spec: ModelSpec,
        files: Sequence[RemoteFile],
        ticket: LoadTicket | None = None,
        arrivals: DownloadProgress | None = None,
    ) -> None:
        """Have `files` here, sound; one process at a time fetches what is not."""
        folder, ticket = self.folder_of(spec.key), ticket or LoadTicket()
        generation = GenerationFolder(folder)
        if not generation.unsound(files):
            return
        with self._locks.fetch(folder.name, ticket.raise_if_cancelled):
            missing = generation.unsound(files)  # another process may have fetched them meanwhile
            if not missing:
                return
            try:
                with self._link.use(ticket) as link:
                    self._fetch_all(self._open(spec), missing, generation, link, arrivals)
            except OSError as error:
                _remove_partials(missing, folder)
                needed = sum(file.size_bytes for file in missing)
                raise self._write_failure(error, folder, needed) from error
            except ModelInvalid:  # what has come is of another version, or not what S3 has
                _remove_partials(missing, folder)
                raise

    def _fetch_all(
        self,
        storage: ModelStorage,
        files: Sequence[RemoteFile],
        generation: GenerationFolder,
        link: BandwidthUse,
        arrivals: DownloadProgress | None,
    ) -> None:
        for file in files:
            (generation.path / file.path).unlink(missing_ok=True)
        with ExitStack() as stack:
            partials = self._room.open(files, generation.path, stack)
            total = sum(file.size_bytes for file in files)
            missing = sum(
                span.size_bytes for partial in partials for span in partial.missing_ranges()
            )
            link.ticket.start_download(total, total - missing)
            if arrivals is not None:
                for partial in partials:
                    arrivals.watch(partial)
                arrivals.whole(generation.path)
            with ThreadPoolExecutor(min(FILES_AT_ONCE, len(files))) as pool:
                if len(files) > FILES_AT_ONCE:  # the layout needs the headers of all
                    heads = [
                        pool.submit(storage.fetch, each.file, each, link, head_only=True)
                        for each in partials
                    ]
                    for head in heads:
                        head.result()
                fetches = [
                    pool.submit(self._fetch, storage, partial, generation, link)
                    for partial in partials
                ]
            for fetch in fetches:
                fetch.result()

    def _fetch(
        self,
        storage: ModelStorage,
        partial: PartialFile,
        generation: GenerationFolder,
        link: BandwidthUse,
    ) -> None:
        storage.fetch(partial.file, partial, link)
        generation.put_in_place(partial)

    def _write_failure(self, error: OSError, folder: Path, needed: int) -> LoadFailed:
        full = disk_full(error, folder, needed)
        return full or StorageFailed(f"{folder} cannot be written: {error}")

    def _remove_stale(self) -> None:
        """Clear away what an earlier boot had not finished, unless somebody is at it."""
        for folder in self._room.generations().values():
            owned = self._locks.own(folder.name)
            if owned is not None:
                with owned:
                    remove_stale_partials(folder)


def _remove_partials(files: Sequence[RemoteFile], folder: Path) -> None:
    for file in files:
        remove_partial(folder / file.path)
