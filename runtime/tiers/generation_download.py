"""Downloads a generation's files into the disk cache: one process of the node at a time.

However many pods need a model, one of them downloads it and the others wait for its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.sizes import shown_bytes
from registry.domain.model import ModelSpec
from runtime.errors import ModelInvalid
from runtime.storage.archives import Archive, archive_hint, only_archive
from runtime.storage.bandwidth import Bandwidth, BandwidthUse
from runtime.storage.declared_files import OWN_ENGINES, FileRules
from runtime.storage.listing import RemoteFile
from runtime.storage.load_ticket import LoadTicket
from runtime.storage.partial_file import PartialFile, remove_partial
from runtime.tiers.cache_locks import CacheLocks, write_error
from runtime.tiers.disk_budget import DiskBudget, model_of
from runtime.tiers.generation_folder import STAGING, GenerationFolder

if TYPE_CHECKING:
    from runtime.storage.storages import ModelStorage, Storages
    from runtime.tiers.download_progress import DownloadProgress

MAX_PARALLEL_FILES = 4


@dataclass(frozen=True, slots=True)
class GenerationDownloader:
    """Fetches listings and files from storage. Methods block."""

    storages: Storages
    bandwidth: Bandwidth
    locks: CacheLocks
    budget: DiskBudget
    rules: FileRules = OWN_ENGINES

    def listing(self, spec: ModelSpec, generation: GenerationFolder) -> tuple[RemoteFile, ...]:
        """The model's files, from the folder or from storage; raises LoadFailed.

        Files of the folder are the model's only if whoever it is read as today listed them: grants
        and credentials change.
        """
        reader = self.storages.reader(spec)
        listing = _listing_by(reader, generation)
        if listing is not None:
            return listing
        with self.locks.lock_for_download(generation.path.name):
            listing = _listing_by(reader, generation)
            if listing is None:
                storage = self.open_storage(spec, generation)
                found = storage.list_files()
                archive = only_archive(found, spec.storage_uri)
                try:
                    if archive is None:
                        listing = self._declared(spec, found)
                    else:
                        listing = self._unpack(spec, generation, storage, archive)
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
        self, spec: ModelSpec, generation: GenerationFolder, storage: ModelStorage, file: RemoteFile
    ) -> tuple[RemoteFile, ...]:
        """The archive's members as the model's files, of which the declared ones are on disk then.

        What is downloaded of the archive stays for the next attempt, if this one is interrupted.
        """
        chosen: tuple[RemoteFile, ...] = ()
        is_done = False
        with ExitStack() as stack:
            (packed,) = self.budget.open_partials([file], generation.path, stack)
            try:
                storage.fetch(packed, stack.enter_context(self.bandwidth.use(LoadTicket())))
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
        *,
        ticket: LoadTicket | None = None,
        progress: DownloadProgress | None = None,
    ) -> None:
        """Fetch those of `files` that are missing or damaged; raises LoadFailed, LoadCancelled."""
        ticket = ticket or LoadTicket()
        if not generation.missing_or_damaged(files):
            return
        with self.locks.lock_for_download(generation.path.name, ticket.raise_if_cancelled):
            missing = generation.missing_or_damaged(files)  # another process may have fetched some
            if not missing:
                return
            try:
                with self.bandwidth.use(ticket) as bandwidth:
                    storage = self.open_storage(spec, generation)
                    self._fetch_all(storage, missing, generation, bandwidth, progress)
            except (OSError, ModelInvalid) as error:
                for file in missing:
                    remove_partial(generation.path / file.path)
                if isinstance(error, ModelInvalid):
                    raise  # another version of the file, or a wrong checksum
                needed = sum(file.size_bytes for file in missing)
                what = f"{shown_bytes(needed)} of {model_of(generation.path)}"
                raise write_error(error, generation.path.parent, what) from error

    def open_storage(self, spec: ModelSpec, generation: GenerationFolder) -> ModelStorage:
        """Where the model's files are; raises StorageFailed."""
        return self.storages.open(spec, generation.path / STAGING)

    def _fetch_all(
        self,
        storage: ModelStorage,
        files: Sequence[RemoteFile],
        generation: GenerationFolder,
        bandwidth: BandwidthUse,
        progress: DownloadProgress | None,
    ) -> None:
        for file in files:
            (generation.path / file.path).unlink(missing_ok=True)

        def fetch(partial: PartialFile) -> None:
            storage.fetch(partial, bandwidth)
            generation.finish(partial)

        with ExitStack() as stack:
            partials = self.budget.open_partials(files, generation.path, stack)
            if progress is not None:
                for partial in partials:
                    progress.follow(partial)
                progress.add_complete(generation.path)
            with ThreadPoolExecutor(min(MAX_PARALLEL_FILES, len(files))) as pool:
                if len(files) > MAX_PARALLEL_FILES:  # the layout needs the headers of all
                    heads = [
                        pool.submit(storage.fetch, each, bandwidth, head_only=True)
                        for each in partials
                    ]
                    for head in heads:
                        head.result()
                fetches = [pool.submit(fetch, partial) for partial in partials]
            for each in fetches:
                each.result()


def _listing_by(reader: str, generation: GenerationFolder) -> tuple[RemoteFile, ...] | None:
    return generation.listing() if generation.reader() == reader else None
