"""Opens a model's weights for a load: from tier `host`, from disk, or from storage.

The processor is read while the weights are downloaded, and weights under download can be opened as
soon as their headers have arrived.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from registry.domain.model import ModelSpec, Precision, Tier
from runtime.device.memory import CpuMemory
from runtime.device.precision import dtype_on
from runtime.engines.building import engine_of, pickle_path
from runtime.engines.model_server.server_engine import ModelServer, ServerEngine
from runtime.engines.networks.adapter import check_names, read_adapter
from runtime.engines.networks.network_engine import AdapterEngine
from runtime.errors import LoadCancelled, LoadFailed, ModelInvalid
from runtime.generation.limits import GenerationLimits, Room, generation_memory
from runtime.loading.load_threads import LoadThreads, unless_cancelled
from runtime.loading.type_choice import is_bfloat16_chosen
from runtime.sandbox.pickle_engine import PickleEngine
from runtime.storage.listing import WEIGHT_SUFFIX, RemoteFile
from runtime.threads import in_thread
from runtime.tiers.download_progress import DownloadProgress, StreamingWeights
from runtime.weights.cast_weights import CastWeights
from runtime.weights.weight_source import DiskWeights, UnreadFiles, WeightSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from runtime.device.memory import DeviceMemory
    from runtime.engines.engine import Engine
    from runtime.loading.bases import SharedWeights
    from runtime.loading.model_store import ModelStore, StoreEntry
    from runtime.loading.processors import Processors
    from runtime.sandbox.estimators import Estimators
    from runtime.storage.load_ticket import LoadTicket
    from runtime.tasks.task import Processor
    from runtime.tiers.cache_locks import FileLock
    from runtime.tiers.disk_cache import DiskCache
    from runtime.tiers.host_tier import HostTier
    from runtime.weights.safetensors_files import StoredTensor


@dataclass(frozen=True, slots=True)
class ResolvedWeights:
    """A model's open weights, complete or under download, with its folder and processor."""

    folder: Path
    processor: Processor
    weights: WeightSource
    tier: Tier
    engine: Engine
    working_bytes: int
    """Device memory that the model needs besides its weights."""
    lock: FileLock
    """Protects the files from deletion."""
    dtype: torch.dtype | None = None
    """Of the weights on the device; None: as they are stored."""
    generation: GenerationLimits | None = None
    """With the size of its cache, if the model generates text."""
    base: StoreEntry | None = None
    """Of an adapter, whose folder is that of the base."""
    in_bfloat16: ResolvedWeights | None = None
    """The same in bfloat16, to be compared with this one; None: there is no choice to make."""

    @property
    def memory_bytes(self) -> int:
        return self.weights.layout.size_bytes + self.working_bytes


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
        """Report a failure even if the fetch never got a thread."""
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


@dataclass(frozen=True, slots=True)
class _OpenWeights:
    """Open weights, their tier, and their download if there is one."""

    weights: WeightSource
    tier: Tier
    download: Download | None = None

    async def end(self) -> None:
        self.weights.close()
        if self.download is not None:
            await self.download.end()


@dataclass(frozen=True, slots=True)
class WeightResolver:
    store: ModelStore
    cache: DiskCache
    host: HostTier
    processors: Processors
    threads: LoadThreads
    generation_limits: GenerationLimits
    memory: DeviceMemory = field(default_factory=CpuMemory)
    server: ModelServer | None = None
    """What runs all models in place of the pod's own engines; None: those do."""
    estimators: Estimators | None = None
    """Runs pickled models; None: they are refused."""

    async def nearest_tier(self, key: str) -> Tier:
        """The tier that a load of the model would start from now."""
        if self.host.bytes_of(key):
            return Tier.HOST
        is_cached = await in_thread(self.threads, self.cache.has_weights, key)
        return Tier.DISK if is_cached else Tier.REMOTE

    @asynccontextmanager
    async def resolve(
        self,
        spec: ModelSpec,
        ticket: LoadTicket,
        lock: FileLock,
        base: StoreEntry | None = None,
    ) -> AsyncIterator[ResolvedWeights]:
        """The model's weights until the end of the block, which cancels a running download.

        An adapter's base must be in use. Raises LoadFailed, LoadCancelled.
        """
        threads = self.threads.executor_for(ticket)
        was_on_disk = await in_thread(threads, self.cache.has_weights, spec.key)
        folder = await unless_cancelled(ticket, self.processors.folder(spec))
        files = await in_thread(threads, self.cache.weight_files, spec)
        weight_bytes = sum(file.size_bytes for file in files)
        engine: Engine
        if self.server is not None:
            engine = ServerEngine(self.server, spec)
        elif base is None:
            pickle = await in_thread(threads, pickle_path, folder)
            if pickle is not None:
                engine = PickleEngine(pickle, spec, self.estimators)
            else:
                engine = await in_thread(threads, engine_of, folder)
        else:
            engine = AdapterEngine(await in_thread(threads, read_adapter, folder))
            folder = await unless_cancelled(ticket, self.processors.folder(base.model.spec))
        working_bytes = engine.working_bytes(weight_bytes)
        is_auto = (
            spec.precision is Precision.AUTO and self.memory.has_bfloat16 and engine.takes_dtype
        )
        choice = await in_thread(threads, is_bfloat16_chosen, folder) if is_auto else False
        dtype = torch.bfloat16 if choice else self._dtype(spec, engine)
        # Files of 32 bits become half as large, at least; `reserve` knows the exact size.
        least_bytes = weight_bytes // 2 if dtype is torch.bfloat16 else weight_bytes
        self.store.check_fits(spec.key, least_bytes + working_bytes)
        processor, opened = await self._open_with_processor(spec, files, ticket)
        tier = opened.tier
        came_with_assets = self.server is not None or not files[0].path.endswith(WEIGHT_SUFFIX)
        if tier is Tier.DISK and not was_on_disk and came_with_assets:
            tier = Tier.REMOTE  # downloaded above with the small files
            ticket.mark_started()
        try:
            weights = opened.weights if dtype is None else CastWeights(opened.weights, dtype)
            tensors: Sequence[StoredTensor] = weights.layout.tensors
            if base is not None:
                check_names(tensor.name for tensor in tensors)
                dtype, tensors = _shared(base).dtype, _shared(base).stored
            resolved = ResolvedWeights(
                folder, processor, weights, tier, engine, working_bytes, lock, dtype, base=base
            )
            complete = partial(self._with_generation, spec, resolved, tensors)
            yield await in_thread(threads, partial(complete, tries=choice is None))
        except asyncio.CancelledError:  # the pod shuts down
            ticket.cancel("the pod shuts down")
            raise
        except BaseException:
            await opened.end()
            raise
        await opened.end()

    def _with_generation(
        self,
        spec: ModelSpec,
        resolved: ResolvedWeights,
        tensors: Sequence[StoredTensor],
        *,
        tries: bool,
    ) -> ResolvedWeights:
        """With the memory to generate text; `tries`: with the same weights in bfloat16, too.

        `tensors`: those of the network, which are the base's for an adapter.
        """
        if self.server is not None:
            return resolved
        store = self.store
        free_bytes = min(store.free_bytes, self.memory.free_bytes())
        room = Room(
            store.most_bytes(spec.key) - resolved.memory_bytes, free_bytes - resolved.memory_bytes
        )
        found = generation_memory(resolved.folder, spec.task, self.generation_limits, tensors, room)
        complete = replace(
            resolved,
            working_bytes=resolved.working_bytes + found.total_bytes,
            generation=found.limits,
        )
        near = CastWeights(resolved.weights, torch.bfloat16) if tries else None
        if near is None or near.layout.size_bytes >= resolved.weights.layout.size_bytes:
            return complete
        halved = replace(resolved, weights=near, dtype=torch.bfloat16)
        return replace(
            complete,
            in_bfloat16=self._with_generation(spec, halved, near.layout.tensors, tries=False),
        )

    def _dtype(self, spec: ModelSpec, engine: Engine) -> torch.dtype | None:
        """The type that the model declares; raises ModelInvalid if its format has none."""
        if spec.precision is None:
            return None
        if not engine.takes_dtype:
            if spec.precision is Precision.AUTO:
                return None
            raise ModelInvalid(
                f"pilotlight.io/dtype is {spec.precision}, but a model of {engine.name} keeps its"
                " own types: remove the annotation"
            )
        memory = self.memory
        return dtype_on(memory.device, spec.precision, has_bfloat16=memory.has_bfloat16)

    async def _open_with_processor(
        self, spec: ModelSpec, files: Sequence[RemoteFile], ticket: LoadTicket
    ) -> tuple[Processor, _OpenWeights]:
        processor, opened = await asyncio.gather(
            unless_cancelled(ticket, self.processors.get(spec)),
            self._open(spec, files, ticket),
            return_exceptions=True,
        )
        if not isinstance(processor, BaseException) and not isinstance(opened, BaseException):
            return processor, opened
        if isinstance(opened, _OpenWeights):
            await opened.end()
        raise _cause(processor, opened)

    async def _open(
        self, spec: ModelSpec, files: Sequence[RemoteFile], ticket: LoadTicket
    ) -> _OpenWeights:
        threads = self.threads.executor_for(ticket)
        image = await in_thread(threads, self.host.open, spec.key, files)
        if image is not None:
            return _OpenWeights(image, Tier.HOST)
        if await in_thread(threads, self.cache.has_weights, spec.key):
            paths = await in_thread(threads, self.cache.fetch_weights, spec, ticket)
            if self.server is not None:
                folder = self.cache.folder_of(spec.key)
                return _OpenWeights(await in_thread(threads, UnreadFiles, folder, paths), Tier.DISK)
            return _OpenWeights(await in_thread(threads, DiskWeights, paths), Tier.DISK)
        download = Download(self.cache, spec, files, ticket=ticket, threads=threads)
        try:
            return _OpenWeights(await download.weights(), Tier.REMOTE, download)
        except asyncio.CancelledError:
            ticket.cancel("the pod shuts down")
            raise
        except BaseException:
            await download.end()
            raise


def _shared(base: StoreEntry) -> SharedWeights:
    if base.shared is None:
        raise LoadFailed(
            f"{base.key} cannot be the base of an adapter: it is not a model of transformers"
        )
    return base.shared


def _cause(*results: object) -> BaseException:
    """The error that is not LoadCancelled, if any: a failure cancels the other part."""
    errors = [result for result in results if isinstance(result, BaseException)]
    return min(errors, key=lambda error: isinstance(error, LoadCancelled))
