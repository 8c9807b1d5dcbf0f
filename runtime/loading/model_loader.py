"""Loads a model from open weights to the device: weights, network and a first inference.

`weight_resolver` provides the files, which may still be downloading while this module works.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from registry.domain.model import ModelSpec, Tier
from runtime.device.device_errors import (
    is_device_error,
    is_device_lost,
    is_out_of_memory,
    release_frames,
)
from runtime.device.forward_graphs import ForwardGraphs
from runtime.device.memory import CpuMemory
from runtime.engines.engine import ModelFolder
from runtime.engines.model_server.server_engine import ServerModel
from runtime.errors import (
    DeviceFailed,
    DeviceFull,
    ModelInvalid,
    PodDraining,
    RuntimePackageError,
)
from runtime.generation.engine import Sampling
from runtime.generation.limits import Attention
from runtime.generation.transformers_engine import TransformersEngine
from runtime.loading.bases import SharedWeights
from runtime.loading.model_store import ModelStore, StoreEntry
from runtime.loading.pickled_model import PickledModel
from runtime.loading.proxied_model import ProxiedModel
from runtime.loading.served_model import ServedModel
from runtime.loading.type_choice import difference, record_choice, sample_outputs
from runtime.sandbox.estimators import LoadedEstimator
from runtime.tasks.text_generation import TextGeneration
from runtime.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import torch
    from transformers import PreTrainedModel

    from runtime.device.memory import DeviceMemory
    from runtime.device.worker import DeviceWorker
    from runtime.engines.skeletons import Skeleton, Skeletons
    from runtime.loading.weight_resolver import ResolvedWeights, WeightResolver
    from runtime.storage.load_ticket import LoadTicket
    from runtime.weights.slab import DeviceWeights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Opens weights from any tier and copies them to the device; the caller reserves memory."""

    store: ModelStore
    resolver: WeightResolver
    memory: DeviceMemory
    skeletons: Skeletons
    device: DeviceWorker

    @asynccontextmanager
    async def open(
        self, spec: ModelSpec, ticket: LoadTicket, base: StoreEntry | None = None
    ) -> AsyncIterator[ResolvedWeights]:
        """The open weights, of an adapter with its base in use; raises LoadFailed, LoadCancelled.

        Their files are protected from deletion until the model is off the device, if the block
        ends without an error.
        """
        resolver = self.resolver
        lock = await in_thread(resolver.threads, resolver.cache.lock_for_use, spec.key)
        try:
            async with resolver.resolve(spec, ticket, lock, base) as resolved:
                yield resolved
        except BaseException as error:
            lock.release()
            if isinstance(error, ModelInvalid):
                # The source may be corrected: the next attempt fetches the files again.
                await in_thread(resolver.threads, resolver.cache.discard, spec.key)
                await in_thread(resolver.threads, resolver.host.discard, spec.key)
                resolver.processors.forget(spec.key)
            raise

    async def copy(
        self, spec: ModelSpec, resolved: ResolvedWeights, ticket: LoadTicket
    ) -> StoreEntry:
        """The model, which has completed its first inference, in memory reserved for it.

        Raises LoadFailed, MemoryBusy, and LoadCancelled soon after the ticket is cancelled.
        """
        await self.make_way(ticket)
        loaded = await _DeviceLoad(self, spec, resolved, ticket).run()

        def free_all() -> None:
            loaded.free()
            resolved.lock.release()

        excess = loaded.memory_bytes - resolved.memory_bytes
        used = self.store.used_bytes + self.store.reserved_bytes + excess
        if excess > 0 and used > self.store.budget_bytes:
            self.store.evict_idle(used - self.store.budget_bytes, spec.key)
        return StoreEntry(
            spec.key,
            loaded.memory_bytes,
            model=loaded.model,
            free=free_all,
            shared=loaded.shared,
            base=resolved.base,
        )

    async def make_way(self, ticket: LoadTicket, missing_bytes: int = 0) -> bool:
        """Have outputs of steps copied from memory that a load needs; False if it gets none."""
        kept = self.device.kept
        if not kept.used_bytes:
            return False
        executor = self.resolver.threads.executor_for(ticket)
        return await in_thread(executor, kept.make_way, missing_bytes)


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: ServedModel
    memory_bytes: int
    free: Callable[[], None]
    shared: SharedWeights | None

    def drop(self) -> None:
        """Take the model off the device."""
        self.model.stop()
        self.free()


@dataclass(frozen=True, slots=True)
class _DeviceLoad:
    """One load from open weights to a served model."""

    loader: ModelLoader
    spec: ModelSpec
    resolved: ResolvedWeights
    ticket: LoadTicket

    async def run(self) -> _Loaded:
        """The model with a function that frees its memory, of the type that fits it.

        A model of which `auto` knows nothing yet is loaded as it is stored, then in bfloat16, and
        as it is stored again if the two differ.
        """
        near = self.resolved.in_bfloat16
        if near is None:
            return await self._run_until_room()
        exact = await self._sample(stored := await self._run_until_room())
        stored.drop()
        halved = replace(self, resolved=near)
        loaded: _Loaded | None = None
        found = math.inf
        with suppress(ModelInvalid):  # it may not run in this type
            loaded = await halved._run_until_room()
            found = difference(exact, await halved._sample(loaded))
        executor = self.loader.resolver.threads.executor_for(self.ticket)
        keep = partial(record_choice, self.resolved.folder, difference=found)
        is_near = await in_thread(executor, keep)
        extra = {"key": self.spec.key, "difference": found, "bfloat16": is_near}
        logger.info("dtype chosen", extra=extra)
        if loaded is not None:
            if is_near:
                return loaded
            loaded.drop()
        return await self._run_until_room()

    async def _sample(self, loaded: _Loaded) -> torch.Tensor | None:
        """The outputs of one sample input; frees the model if the device fails."""
        work = partial(loaded.model.call, sample_outputs)
        try:
            with self._device_errors():
                return (await self.loader.device.run(work, model=loaded.model.device_model)).value
        except BaseException:
            loaded.drop()
            raise

    async def _run_until_room(self) -> _Loaded:
        """Evicts idle models while the device is full, as many as what is missing."""
        while True:
            try:
                with self._device_errors():
                    return await self._run_once()
            except DeviceFull as error:
                release_frames(error)  # they hold a slab, or a network
                if await self.loader.make_way(self.ticket, max(1, error.missing_bytes)):
                    continue
                if not self.loader.store.evict_idle(error.missing_bytes, self.spec.key):
                    raise

    @contextmanager
    def _device_errors(self) -> Iterator[None]:
        """Device errors are not attributed to the model, whose files are kept.

        Raises DeviceFull, DeviceFailed or PodDraining in their place.
        """
        key = self.spec.key
        try:
            yield
        except Exception as error:
            if is_device_lost(error):
                self.loader.device.mark_lost(error)
                raise PodDraining(f"the pod's device failed while {key} was loaded") from error
            if is_out_of_memory(error) and not isinstance(error, DeviceFull):
                raise DeviceFull(f"the device has no memory for {key}: {error}") from error
            if is_device_error(error) and not isinstance(error, RuntimePackageError):
                raise DeviceFailed(f"the device failed while {key} was loaded: {error}") from error
            raise

    async def _run_once(self) -> _Loaded:
        weights, skeleton = await self._weights_and_skeleton()
        await self._attach(skeleton, weights)
        if isinstance(skeleton.network, ServerModel):
            return self._at_server(skeleton, skeleton.network, weights)
        if isinstance(skeleton.network, LoadedEstimator):
            return self._in_process(skeleton, skeleton.network, weights)
        model = ServedModel(
            self.spec,
            processor=self.resolved.processor,
            network=skeleton.network,
            device=self.loader.device,
        )
        try:
            await self._warm_up(model, skeleton)
            if isinstance(self.resolved.processor, TextGeneration):
                await self._start_generator(model, skeleton.network)
        except BaseException:
            model.stop()
            skeleton.detach()  # not kept, since it may have caused the failure
            weights.release()
            raise
        free = partial(self._free, model, skeleton, weights)
        return _Loaded(model, self.resolved.memory_bytes, free, self._shared(weights))

    def _at_server(
        self, skeleton: Skeleton, network: ServerModel, weights: DeviceWeights
    ) -> _Loaded:
        """A model that the pod's model server has loaded: it is ready as it is."""
        server = self.loader.resolver.server
        if server is None:
            raise RuntimeError("a model of a server was loaded without one")
        model = ProxiedModel(
            self.spec,
            processor=self.resolved.processor,
            network=network,
            device=self.loader.device,
            server=server,
        )
        return self._elsewhere(model, network.memory_bytes, skeleton, weights)

    def _in_process(
        self, skeleton: Skeleton, network: LoadedEstimator, weights: DeviceWeights
    ) -> _Loaded:
        """A pickled model, which its namespace's process has loaded."""
        estimators = self.loader.resolver.estimators
        if estimators is None:
            raise RuntimeError("a pickled model was loaded without a process for it")
        model = PickledModel(
            self.spec,
            processor=self.resolved.processor,
            network=network,
            device=self.loader.device,
            estimators=estimators,
        )
        return self._elsewhere(model, network.memory_bytes, skeleton, weights)

    def _elsewhere(
        self, model: ServedModel, memory_bytes: int, skeleton: Skeleton, weights: DeviceWeights
    ) -> _Loaded:
        """A model of another process, which takes what was measured, or what its files suggest."""
        free = partial(self._free, model, skeleton, weights)
        return _Loaded(model, max(self.resolved.memory_bytes, memory_bytes), free, None)

    def _shared(self, weights: DeviceWeights) -> SharedWeights | None:
        """The weights, if they may be the base of adapters."""
        resolved = self.resolved
        if not resolved.engine.takes_dtype:
            return None
        return SharedWeights(weights, resolved.weights.layout.tensors, resolved.dtype)

    async def _attach(self, skeleton: Skeleton, weights: DeviceWeights) -> None:
        if not skeleton.copies_weights:
            skeleton.attach(self._base_tensors() | weights.tensors)
            return
        try:
            executor = self.loader.resolver.threads.executor_for(self.ticket)
            await in_thread(executor, skeleton.attach, weights.tensors)
        finally:
            weights.release()

    async def _weights_and_skeleton(self) -> tuple[DeviceWeights, Skeleton]:
        """Builds the skeleton while the weights arrive; its failure cancels their download."""
        weights, skeleton = await asyncio.gather(
            in_thread(self.loader.resolver.threads.executor_for(self.ticket), self._copy_weights),
            self._build_skeleton(),
            return_exceptions=True,
        )
        if isinstance(skeleton, BaseException):
            if not isinstance(weights, BaseException):
                weights.release()
            raise skeleton
        if isinstance(weights, BaseException):
            self.loader.skeletons.put_back(skeleton)
            raise weights
        return weights, skeleton

    def _copy_weights(self) -> DeviceWeights:
        if self.resolved.tier is not Tier.REMOTE:
            self.ticket.mark_started()
        memory = self.loader.memory if self.resolved.engine.uses_device else CpuMemory()
        return memory.put(self.resolved.weights, self.ticket)

    async def _build_skeleton(self) -> Skeleton:
        try:
            return await in_thread(
                self.loader.resolver.threads.executor_for(self.ticket), self._skeleton
            )
        except Exception as error:
            if not is_out_of_memory(error):  # an eviction may make the next attempt succeed
                self.ticket.cancel("its network cannot be built")
            raise

    def _skeleton(self) -> Skeleton:
        loader, engine = self.loader, self.resolved.engine
        tensors = self.resolved.weights.layout.tensors
        if (base := self._base_weights()) is not None:
            tensors = (*base.stored, *tensors)
        model = ModelFolder(
            self.resolved.folder,
            self.spec.task,
            tensors,
            self.resolved.dtype,
            loader.store.budget_bytes,
        )
        key = engine.skeleton_key(model)
        device, threads = loader.memory.device, loader.device.thread_count

        def build() -> Skeleton:
            made = engine.build_skeleton(model, key=key, device=device, threads=threads)
            if loader.memory.graphs is not None and engine.takes_dtype:  # a network of transformers
                made.use_graphs(ForwardGraphs(made.network, loader.memory.graphs))
            return made

        return loader.skeletons.take(key, build)

    def _base_weights(self) -> SharedWeights | None:
        base = self.resolved.base
        return None if base is None else base.shared

    def _base_tensors(self) -> dict[str, torch.Tensor]:
        base = self._base_weights()
        return {} if base is None else base.weights.tensors

    def _free(self, model: ServedModel, skeleton: Skeleton, weights: DeviceWeights) -> None:
        if model.is_broken:  # a thread may hang in it forever
            skeleton.detach()
        else:
            self.loader.skeletons.put_back(skeleton)
        weights.release()

    async def _warm_up(self, model: ServedModel, skeleton: Skeleton) -> None:
        """One inference, so that no request spends the time of the first one's setup.

        It prepares this process's code and buffers of the architecture. A reused skeleton has them
        already; all pages of the weights are in memory in any case.
        """
        if skeleton.has_inferred:
            return
        try:
            await model.warm_up()
        except RuntimePackageError:
            raise
        except Exception as error:  # a network that cannot infer is not served
            if is_out_of_memory(error) or is_device_error(error):
                raise
            raise ModelInvalid(f"{self.spec.key} failed its first inference: {error}") from error
        skeleton.has_inferred = True

    async def _start_generator(self, model: ServedModel, network: PreTrainedModel) -> None:
        """Create the generation engine on the device and generate one token."""
        device = self.loader.device
        limits = self.resolved.generation or self.loader.resolver.generation_limits
        if limits.attention is Attention.PAGED:
            from runtime.generation.paged_attention import prepare  # imports torch's compiler

            executor = self.loader.resolver.threads.executor_for(self.ticket)
            await in_thread(executor, prepare, network)
        loop = asyncio.get_running_loop()
        graphs = self.loader.memory.graphs
        make = partial(
            TransformersEngine, network, device, model.device_model, limits, loop, graphs
        )
        engine = (await device.run(make, model=model.device_model)).value
        async for _ in engine.generate([0], Sampling(max_tokens=1, seed=0, temperature=0)):
            pass
        model.generator = engine
