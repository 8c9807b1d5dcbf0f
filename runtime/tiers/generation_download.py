"""Downloads a generation's files into the disk cache: one process of the node at a time.

However many pods need a model, one of them downloads it and the others wait for its files.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.errors import ModelInvalid
from runtime.storage.listing import OWN_ENGINES, FileRules, RemoteFile
from runtime.storage.load_ticket import LoadTicket
from runtime.storage.partial_file import PartialFile, remove_partial
from runtime.tiers.disk_full import write_error
from runtime.tiers.generation_folder import STAGING, GenerationFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from registry.domain.model import ModelSpec
    from runtime.storage.bandwidth import Bandwidth, BandwidthUse
    from runtime.storage.storages import ModelStorage, Storages
    from runtime.tiers.cache_locks import CacheLocks
    from runtime.tiers.disk_budget import DiskBudget
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
                listing = self._open_storage(spec, generation).list_files()
                self.rules.assets(listing, spec.storage_uri)  # refuse it before anything is written
                try:
                    generation.write_listing(listing, reader)
                except OSError as error:
                    what = f"the list of files of {generation.path.name}"
                    raise write_error(error, generation.path.parent, what) from error
        return listing

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
                    storage = self._open_storage(spec, generation)
                    self._fetch_all(storage, missing, generation, bandwidth, progress)
            except (OSError, ModelInvalid) as error:
                for file in missing:
                    remove_partial(generation.path / file.path)
                if isinstance(error, ModelInvalid):
                    raise  # another version of the file, or a wrong checksum
                needed = sum(file.size_bytes for file in missing)
                what = f"{needed} bytes of {generation.path.name}"
                raise write_error(error, generation.path.parent, what) from error

    def _open_storage(self, spec: ModelSpec, generation: GenerationFolder) -> ModelStorage:
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
            total = sum(file.size_bytes for file in files)
            missing = sum(rest.size_bytes for each in partials for rest in each.missing_ranges())
            bandwidth.ticket.start_download(total, total - missing)
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
