"""A download of one model's weights to the disk cache, readable while it runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runtime.threads import in_thread
from runtime.tiers.download_progress import DownloadProgress
from runtime.tiers.streaming_weights import StreamingWeights

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from registry.domain.model import ModelSpec
    from runtime.storage.listing import RemoteFile
    from runtime.storage.load_ticket import LoadTicket
    from runtime.tiers.disk_cache import DiskCache


class Download:
    """A download in a thread, started on creation. Owned by the event loop, which calls `end`."""

    def __init__(
        self,
        cache: DiskCache,
        spec: ModelSpec,
        files: Sequence[RemoteFile],
        *,
        ticket: LoadTicket,
        threads: Executor,
    ) -> None:
        self._cache = cache
        self._spec = spec
        self._ticket = ticket
        self._threads = threads
        self._progress = DownloadProgress(files, ticket)
        loop = asyncio.get_running_loop()
        self._fetching = loop.run_in_executor(threads, self._fetch)
        self._fetching.add_done_callback(self._report_failure)

    def _fetch(self) -> None:
        try:
            self._cache.fetch_weights(self._spec, self._ticket, self._progress)
        except BaseException as error:
            self._progress.fail(error)
            raise

    def _report_failure(self, fetching: asyncio.Future[None]) -> None:
        """Report failures before the fetch has a thread, too."""
        if not fetching.cancelled() and (error := fetching.exception()) is not None:
            self._progress.fail(error)

    async def weights(self) -> StreamingWeights:
        """The weights, once all headers have arrived; raises LoadFailed, LoadCancelled."""
        await asyncio.shield(asyncio.wrap_future(self._progress.headers))
        return await in_thread(self._threads, StreamingWeights, self._progress)

    async def end(self) -> None:
        """Cancel an unfinished download, wait for its thread, and close the files."""
        if not self._fetching.done():
            self._ticket.cancel("the load had ended")
        await asyncio.wait({self._fetching})
        self._progress.close()
