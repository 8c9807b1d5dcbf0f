"""Opens a model's weights for a load: from tier `host`, from disk, or from storage.

The processor is read while the weights are downloaded, whose headers are read first: so a network
is built, and its memory reserved, while they come.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import torch

from registry.domain.model import ModelSpec, Precision, Tier
from registry.inference_service.documents import LIBRARY_SCHEMES
from runtime.device.memory import CpuMemory, DeviceMemory, dtype_on
from runtime.engines.building import engine_of, estimator_path
from runtime.engines.engine import Engine, ModelFolder, Skeletons
from runtime.engines.networks.changed_layers import check_names, read_adapter
from runtime.engines.networks.network import AdapterEngine
from runtime.engines.process_engine import EngineModel, ProcessEngine, ProcessEngines
from runtime.engines.server_engine import ModelServer, ServerEngine
from runtime.errors import LoadCancelled, LoadFailed, ModelInvalid, ServerUnavailable
from runtime.generation.cache_memory import generation_bytes
from runtime.generation.limits import GenerationLimits
from runtime.loading.external_model import EngineServed
from runtime.loading.model_store import ModelStore, SharedWeights, StoreEntry
from runtime.loading.processors import Processors, unless_cancelled
from runtime.sandbox.estimators import EstimatorEngine, Estimators
from runtime.storage.listing import LIBRARY_SUFFIXES, SKOPS_SUFFIX, WEIGHT_SUFFIX, RemoteFile
from runtime.storage.load_priority import LoadTicket
from runtime.storage.storages import ModelStorage
from runtime.tasks.task import Processor
from runtime.threads import in_thread
from runtime.tiers.disk_budget import FileLock
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.host_tier import HostTier, PutOutcome
from runtime.weights.converted_weights import converted
from runtime.weights.safetensors_files import HEADER_LENGTH_BYTES, MAX_HEADER_BYTES, StoredTensor
from runtime.weights.weight_source import (
    ArrivingWeights,
    DiskWeights,
    UnreadFiles,
    WeightSource,
    stored_tensors,
)


@dataclass(frozen=True, slots=True)
class OpenWeights:
    """A model's open weights, complete or under download, with its folder and processor."""

    spec: ModelSpec
    ticket: LoadTicket
    model: ModelFolder
    """The stored model; for an adapter with its base's folder and tensors."""
    processor: Processor
    weights: WeightSource
    """Weights in the dtypes that the network takes."""
    tier: Tier
    engine: Engine
    working_bytes: int
    """Device memory that the model needs besides its weights."""
    lock: FileLock
    """Protects the files from deletion."""
    base: StoreEntry | None = None
    """The base model of an adapter."""

    @property
    def memory_bytes(self) -> int:
        return self.weights.layout.size_bytes + self.working_bytes


@dataclass(frozen=True, slots=True)
class WeightResolver:
    """Finds the nearest copy of a model's weights, and opens it for a load."""

    store: ModelStore
    cache: DiskCache
    host: HostTier
    processors: Processors
    threads: Executor
    generation_limits: GenerationLimits
    memory: DeviceMemory = field(default_factory=CpuMemory)
    server: ModelServer | None = None
    """Model server that runs all models; None: the pod's own engines do."""
    estimators: Estimators | None = None
    """Runs models of scikit-learn; None: they are refused."""
    engines: ProcessEngines | None = None
    """Runs models in processes of their own; None: none."""
    skeletons: Skeletons = field(default_factory=Skeletons)
    """Also used to find the conversions of stored tensors for a network."""

    @asynccontextmanager
    async def resolve(
        self, spec: ModelSpec, ticket: LoadTicket, lock: FileLock, base: StoreEntry | None = None
    ) -> AsyncIterator[OpenWeights]:
        """The model's weights until the end of the block, which cancels a running download.

        An adapter's base must be in use. Raises LoadFailed, LoadCancelled.
        """
        closing = AsyncExitStack()
        try:
            yield await self._open(spec, ticket, lock, base, closing)
        except asyncio.CancelledError:
            ticket.cancel("the pod shuts down")
            closing.pop_all()  # threads may still read: the files close with the process
            raise
        finally:
            await closing.aclose()

    async def _open(
        self,
        spec: ModelSpec,
        ticket: LoadTicket,
        lock: FileLock,
        base: StoreEntry | None,
        closing: AsyncExitStack,
    ) -> OpenWeights:
        threads = self.threads
        was_on_disk = await in_thread(threads, self.cache.has_weights, spec.key)
        folder = await unless_cancelled(ticket, self.processors.folder(spec))
        files = await in_thread(threads, self.cache.weight_files, spec)
        weight_bytes = sum(file.size_bytes for file in files)
        engine: Engine
        if self.server is not None:
            engine = ServerEngine(self.server, spec)
        elif (engines := self.engines) is not None and (
            adapter := await engines.find(spec, folder)
        ) is not None:
            engine = ProcessEngine(engines, adapter, spec, ticket)
        elif engines is not None and base is not None and isinstance(base.model, EngineServed):
            shared = self._with_adapters(base, base.model)
            engine = ProcessEngine(engines, shared.process.adapter, spec, ticket, shared)
        elif base is None:
            engine = await in_thread(threads, self._own_engine, spec, folder)
        else:
            engine = AdapterEngine(await in_thread(threads, read_adapter, folder))
            folder = await unless_cancelled(ticket, self.processors.folder(base.model.spec))
        working_bytes = engine.working_bytes(weight_bytes)
        dtype = self._dtype(spec, engine)
        # Files of 32 bits may become half as large; `reserve` knows the exact size.
        min_bytes = weight_bytes // 2 if engine.takes_dtype else weight_bytes
        self.store.check_fits(spec.key, min_bytes + working_bytes)
        convert = partial(self._convert, spec, engine, folder, dtype, base)
        processor, found = await asyncio.gather(
            unless_cancelled(ticket, self.processors.get(spec)),
            self._open_nearest(spec, files, ticket, engine, convert, closing),
            return_exceptions=True,
        )
        if isinstance(processor, BaseException) or isinstance(found, BaseException):
            raise _cause(processor, found)
        model, weights, tier = found
        came_with_assets = engine.reads_files or not files[0].path.endswith(WEIGHT_SUFFIX)
        if tier is Tier.DISK and not was_on_disk and came_with_assets:
            tier = Tier.REMOTE  # downloaded above with the small files
            ticket.has_started = True
        if not engine.reads_files:
            tensors = weights.layout.tensors if base is None else _shared(base).tensors
            working_bytes += await in_thread(
                threads, generation_bytes, model.path, spec.task, self.generation_limits, tensors
            )
        return OpenWeights(
            spec, ticket, model, processor, weights, tier, engine, working_bytes, lock, base
        )

    async def _open_nearest(
        self,
        spec: ModelSpec,
        files: Sequence[RemoteFile],
        ticket: LoadTicket,
        engine: Engine,
        convert: Callable[[WeightSource], tuple[ModelFolder, WeightSource]],
        closing: AsyncExitStack,
    ) -> tuple[ModelFolder, WeightSource, Tier]:
        """The stored model, its converted weights, and the tier that they are read from."""
        threads = self.threads
        if engine.reads_files:
            is_asleep = self.engines is not None and self.engines.asleep_bytes(spec.key) > 0
            if not is_asleep:
                await in_thread(threads, self.cache.fetch_weights, spec, ticket)
            tier = Tier.HOST if is_asleep else Tier.DISK
            return *await in_thread(threads, convert, UnreadFiles(files)), tier
        stored: WeightSource | None = await in_thread(threads, self.host.open, spec.key, files)
        tier = Tier.HOST
        if stored is None and await in_thread(threads, self.cache.has_weights, spec.key):
            stored, tier = await in_thread(threads, self._open_files, spec, ticket), Tier.DISK
        try:
            if stored is None:
                tier = Tier.REMOTE
                if urlsplit(spec.storage_uri).scheme in LIBRARY_SCHEMES:  # it fetches all at once
                    stored = await in_thread(threads, self._open_files, spec, ticket)
                else:
                    stored = await self._arriving(spec, files, ticket, closing)
            closing.callback(stored.close)
            return *await in_thread(threads, convert, stored), tier
        except Exception:
            await closing.aclose()  # also ends the wait for the processor
            raise

    async def _arriving(
        self,
        spec: ModelSpec,
        files: Sequence[RemoteFile],
        ticket: LoadTicket,
        closing: AsyncExitStack,
    ) -> WeightSource:
        """Weights that are being fetched: their network is built, and has room, meanwhile."""
        fetching = self.threads.submit(self._open_files, spec, ticket)
        closing.push_async_callback(_end_fetch, fetching, ticket)
        reading = in_thread(self.threads, _read_headers, partial(self.cache.source, spec), files)
        return ArrivingWeights(await unless_cancelled(ticket, reading), fetching)

    def _with_adapters(self, base: StoreEntry, model: EngineServed) -> EngineModel:
        """The engine of a base; raises ServerUnavailable where it must start anew for adapters."""
        process = model.loaded.process
        if not process.start.lora:
            process.is_outdated = True
            self.store.retire(base.key, "adapters")
            raise ServerUnavailable(
                f"{base.key} was loaded before it had adapters: its engine starts again"
            )
        return model.loaded

    def _own_engine(self, spec: ModelSpec, folder: Path) -> Engine:
        estimator = estimator_path(folder)
        if estimator is None:
            return engine_of(folder)
        return EstimatorEngine(estimator, spec, self.estimators)

    def _convert(
        self,
        spec: ModelSpec,
        engine: Engine,
        folder: Path,
        dtype: torch.dtype | None,
        base: StoreEntry | None,
        opened: WeightSource,
    ) -> tuple[ModelFolder, WeightSource]:
        """The stored model, and its weights converted for its network. Blocks."""
        stored: Sequence[StoredTensor] = opened.layout.tensors
        if base is not None and not engine.reads_files:
            check_names(tensor.name for tensor in stored)
            dtype, stored = _shared(base).dtype, (*_shared(base).stored, *stored)
        model = ModelFolder(folder, spec.task, stored, dtype, self.store.budget_bytes)
        return model, self._converted(engine, model, opened)

    def _converted(self, engine: Engine, model: ModelFolder, opened: WeightSource) -> WeightSource:
        """The weights in the dtypes of the engine's network; raises LoadFailed. Blocks."""
        if not engine.takes_dtype:
            return opened
        key = engine.skeleton_key(model)
        build = partial(engine.build_skeleton, model, key=key, device=self.memory.device, threads=1)
        return converted(opened, self.skeletons.conversions(key, build))

    def copy_to_host(
        self, spec: ModelSpec, should_stop: Callable[[], bool] = lambda: False
    ) -> PutOutcome:
        """Copy a model on disk to tier `host`, from where the device may copy it. Blocks.

        Raises LoadFailed.
        """
        files, folder = self.cache.weight_files(spec), self.cache.folder_of(spec.key)
        image, outcome = self.host.open(spec.key, files), PutOutcome.THERE
        if image is None:
            paths = [folder / file.path for file in files]
            form = partial(self._converted_for_host, spec)
            outcome = self.host.put_files(spec.key, files, paths, should_stop, form)
            image = self.host.open(spec.key, files)
        if image is not None:
            self.memory.register(image)
            image.close()
        return outcome

    def _converted_for_host(self, spec: ModelSpec, opened: WeightSource) -> WeightSource:
        """The weights in the form of the device: loads from tier `host` need no conversion."""
        folder = self.cache.folder_of(spec.key)
        if self.server is not None or spec.base or estimator_path(folder) is not None:
            return opened
        engine = engine_of(folder)
        dtype = self._dtype(spec, engine)
        model = ModelFolder(folder, spec.task, opened.layout.tensors, dtype)
        return self._converted(engine, model, opened)

    def _dtype(self, spec: ModelSpec, engine: Engine) -> torch.dtype | None:
        """The dtype that the model declares; raises ModelInvalid if its engine cannot convert."""
        if spec.precision in (None, Precision.AUTO) or isinstance(engine, ProcessEngine):
            return None
        if not engine.takes_dtype:
            raise ModelInvalid(
                f"pilotlight.io/dtype is {spec.precision}, but a model of {engine.name} keeps its"
                " own types: remove the annotation"
            )
        memory = self.memory
        return dtype_on(memory.device, spec.precision, has_bfloat16=memory.has_bfloat16)

    def _open_files(self, spec: ModelSpec, ticket: LoadTicket) -> DiskWeights:
        return DiskWeights(self.cache.fetch_weights(spec, ticket))


async def _end_fetch(fetching: Future[DiskWeights], ticket: LoadTicket) -> None:
    """Cancel an unfinished fetch, wait for its thread, and close its files."""
    if not fetching.done():
        ticket.cancel("the load had ended")
    ended = asyncio.wrap_future(fetching)
    await asyncio.wait({ended})
    if not ended.cancelled() and ended.exception() is None:
        ended.result().close()


def _shared(base: StoreEntry) -> SharedWeights:
    if base.shared is None:
        raise LoadFailed(
            f"{base.key} cannot be the base of an adapter: it is not a model of transformers"
        )
    return base.shared


def _cause(*results: object) -> BaseException:
    """The first error other than LoadCancelled, if any: a failure cancels the other part."""
    errors = [result for result in results if isinstance(result, BaseException)]
    return min(errors, key=lambda error: isinstance(error, LoadCancelled))


_START_BYTES: Final = 256 * 1024
"""Longer than most headers, so that one read suffices."""
_PARALLEL: Final = 8
_ZIP: Final = b"PK"


async def check_files(resolver: WeightResolver, spec: ModelSpec, *, build_threads: int) -> None:
    """Check a model before any load; raises LoadFailed for absent, damaged or unfitting files.

    Reads the first bytes of each file of weights, and builds the network for their shapes, which
    the first load then uses.
    """
    try:
        with await in_thread(resolver.threads, resolver.cache.lock_for_use, spec.key):
            await resolver.processors.get(spec)
            if resolver.server is None and not spec.base:
                await in_thread(resolver.threads, _check_weights, resolver, spec, build_threads)
    except ModelInvalid:
        # The source may be corrected: the next attempt fetches the files again.
        resolver.processors.forget(spec.key)
        await in_thread(resolver.threads, resolver.cache.discard, spec.key)
        raise


def _check_weights(resolver: WeightResolver, spec: ModelSpec, build_threads: int) -> None:
    cache = resolver.cache
    stored = cache.weight_files(spec)
    open_storage = lru_cache(partial(cache.source, spec))  # a library fetches the whole model
    for each in stored:
        _check_start(open_storage, each)
    files = [each for each in stored if each.path.endswith(WEIGHT_SUFFIX)]
    if not files or cache.has_weights(spec.key):
        return
    folder = cache.folder_of(spec.key)
    tensors = _read_headers(open_storage, files)
    engine = engine_of(folder)
    if not engine.takes_dtype:  # not a transformers network
        return
    model = ModelFolder(folder, spec.task, tensors, None, resolver.store.budget_bytes)
    key, skeletons = engine.skeleton_key(model), resolver.skeletons
    build = partial(
        engine.build_skeleton, model, key=key, device=resolver.memory.device, threads=build_threads
    )
    skeletons.put_back(skeletons.take(key, build))


def _check_start(open_storage: Callable[[], ModelStorage], file: RemoteFile) -> None:
    """Raises ModelInvalid for an empty file, or one of skops that is no zip archive."""
    if not file.path.endswith(LIBRARY_SUFFIXES):
        return
    if not file.size_bytes:
        raise ModelInvalid(f"{file.path} is empty: is its upload complete?")
    if file.path.endswith(SKOPS_SUFFIX) and open_storage().read_start(file, 2) != _ZIP:
        raise ModelInvalid(
            f"{file.path} is no file of skops, whose files are zip archives; a pickle under that"
            " name? Save the model with skops.io.dump(model, 'model.skops')"
        )


def _read_headers(
    open_storage: Callable[[], ModelStorage], files: Sequence[RemoteFile]
) -> list[StoredTensor]:
    """The tensors in all files; raises LoadFailed. Blocks."""
    storage = open_storage()
    with ThreadPoolExecutor(min(_PARALLEL, len(files))) as threads:
        return list(chain.from_iterable(threads.map(partial(_tensors, storage), files)))


def _tensors(storage: ModelStorage, file: RemoteFile) -> Sequence[StoredTensor]:
    """The tensors in a file's header; raises ModelInvalid if the file is too short for them."""
    start = storage.read_start(file, _START_BYTES) if file.size_bytes else b""
    end = HEADER_LENGTH_BYTES + int.from_bytes(start[:HEADER_LENGTH_BYTES], "little")
    if len(start) < end <= min(MAX_HEADER_BYTES, file.size_bytes):
        start = storage.read_start(file, end)
    descriptor = os.memfd_create("header")
    try:
        os.write(descriptor, start)
        os.ftruncate(descriptor, file.size_bytes)  # sparse: the rest takes no memory
        return stored_tensors(descriptor, file.path)
    finally:
        os.close(descriptor)
