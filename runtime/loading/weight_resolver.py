"""Finds a model's files for a load: in tier `host`, on disk, or in storage, and fetches them.

What does not need the weights is done while they come: the tokenizer is read, and the weights are
handed on as soon as their headers are here.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.model import Tier
from runtime.errors import LoadCancelled
from runtime.generation.limits import cache_bytes
from runtime.loading.download import Download
from runtime.storage.listing import PROGRAM_SUFFIX
from runtime.storage.load_ticket import unless_cancelled
from runtime.threads import in_thread
from runtime.weights.weight_source import DiskWeights

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from registry.domain.model import ModelSpec
    from runtime.generation.limits import GenerationLimits
    from runtime.loading.load_threads import LoadThreads
    from runtime.loading.model_store import ModelStore
    from runtime.loading.processors import Processors
    from runtime.storage.listing import RemoteFile
    from runtime.storage.load_ticket import LoadTicket
    from runtime.tasks.task import Processor
    from runtime.tiers.disk_cache import DiskCache
    from runtime.tiers.host_tier import HostTier
    from runtime.weights.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class ResolvedWeights:
    """A model's weights, open for reading or on their way, and what serves it beside them."""

    folder: Path
    processor: Processor
    weights: WeightSource
    tier: Tier
    working_bytes: int
    """Memory it takes on the device beside its weights."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the weights are read from."""

    weights: WeightSource
    tier: Tier
    download: Download | None = None

    async def end(self) -> None:
        """Give back what was open, whatever became of it."""
        self.weights.close()
        if self.download is not None:
            await self.download.end()


@dataclass(frozen=True, slots=True)
class WeightResolver:
    """Opens the files of models."""

    store: ModelStore
    cache: DiskCache
    host: HostTier
    processors: Processors
    threads: LoadThreads
    generation_limits: GenerationLimits

    async def nearest_tier(self, key: str) -> Tier:
        """Where a load of the model would start now."""
        if self.host.bytes_of(key):
            return Tier.HOST
        is_cached = await in_thread(self.threads, self.cache.has_weights, key)
        return Tier.DISK if is_cached else Tier.REMOTE

    @asynccontextmanager
    async def find(self, spec: ModelSpec, ticket: LoadTicket) -> AsyncIterator[ResolvedWeights]:
        """The model's files, until the block ends, which ends a download that is under way.

        Raises LoadFailed, LoadCancelled.
        """
        threads = self.threads.of(ticket)
        was_here = await in_thread(threads, self.cache.has_weights, spec.key)
        folder = await unless_cancelled(ticket, self.processors.folder(spec))
        files = await in_thread(threads, self.cache.weight_files, spec)
        working_bytes = await in_thread(
            threads, cache_bytes, folder, spec.task, self.generation_limits
        )
        self.store.check_fits(spec.key, sum(file.size_bytes for file in files) + working_bytes)
        processor, source = await self._open_both(spec, files, ticket)
        tier = source.tier
        if tier is Tier.DISK and not was_here and files[0].path.endswith(PROGRAM_SUFFIX):
            tier = Tier.REMOTE  # a program comes whole with the small files, just now
            ticket.mark_started()
        try:
            yield ResolvedWeights(folder, processor, source.weights, tier, working_bytes)
        except asyncio.CancelledError:  # the pod ends: its threads have no more to wait for
            ticket.cancel("the pod shuts down")
            raise
        except BaseException:
            await source.end()
            raise
        await source.end()

    async def _open_both(
        self, spec: ModelSpec, files: Sequence[RemoteFile], ticket: LoadTicket
    ) -> tuple[Processor, _Source]:
        """The tokenizer is read while the weights are looked for or begin to come."""
        processor, source = await asyncio.gather(
            unless_cancelled(ticket, self.processors.get(spec)),
            self._open(spec, files, ticket),
            return_exceptions=True,
        )
        if not isinstance(processor, BaseException) and not isinstance(source, BaseException):
            return processor, source
        if isinstance(source, _Source):
            await source.end()
        raise _cause(processor, source)

    async def _open(
        self, spec: ModelSpec, files: Sequence[RemoteFile], ticket: LoadTicket
    ) -> _Source:
        threads = self.threads.of(ticket)
        image = await in_thread(threads, self.host.open, spec.key, files)
        if image is not None:
            return _Source(image, Tier.HOST)
        if await in_thread(threads, self.cache.has_weights, spec.key):
            paths = await in_thread(threads, self.cache.fetch_weights, spec, ticket)
            return _Source(await in_thread(threads, DiskWeights, paths), Tier.DISK)
        download = Download(self.cache, spec, files, ticket=ticket, threads=threads)
        try:
            return _Source(await download.weights(), Tier.REMOTE, download)
        except asyncio.CancelledError:
            ticket.cancel("the pod shuts down")
            raise
        except BaseException:
            await download.end()
            raise


def _cause(*results: object) -> BaseException:
    """The error that came first: one part's failure ends the other, which is then cancelled."""
    errors = [result for result in results if isinstance(result, BaseException)]
    return min(errors, key=lambda error: isinstance(error, LoadCancelled))
