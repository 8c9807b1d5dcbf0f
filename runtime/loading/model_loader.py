"""Loads a model from open weights to the device: weights, network and a first inference.

`weight_resolver` provides the files, which may still be downloading while this module works.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial

from common.inference_protocol.errors import PodError
from registry.domain.model import ModelSpec, Tier
from runtime.device.device_errors import (
    is_device_error,
    is_device_lost,
    is_out_of_memory,
    release_frames,
)
from runtime.device.forward_graphs import ForwardGraphs
from runtime.device.memory import CpuMemory
from runtime.device.worker import DeviceWorker
from runtime.engines.model_server.server_engine import ServerModel
from runtime.engines.skeletons import Skeleton
from runtime.errors import DeviceFailed, DeviceFull, ModelInvalid, PodDraining
from runtime.generation.engine import Sampling
from runtime.generation.open_engine import BatchTrial, open_engine
from runtime.loading.model_elsewhere import PickledModel, ProxiedModel
from runtime.loading.model_store import ModelStore, SharedWeights, StoreEntry
from runtime.loading.served_model import ServedModel
from runtime.loading.weight_resolver import ResolvedWeights, WeightResolver
from runtime.sandbox.estimators import LoadedEstimator
from runtime.storage.load_ticket import LoadTicket
from runtime.tasks.padding_trial import PaddingTrials
from runtime.tasks.text_generation import TextOutputs
from runtime.threads import in_thread
from runtime.weights.safetensors_files import DeviceWeights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Opens weights from any tier and copies them to the device; the caller reserves memory."""

    resolver: WeightResolver
    device: DeviceWorker
    padding: PaddingTrials = field(default_factory=PaddingTrials)
    trials: dict[str, BatchTrial] = field(default_factory=dict)
    """How texts may be computed together, by the key of the skeleton."""

    @property
    def store(self) -> ModelStore:
        return self.resolver.store

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

    async def copy(self, resolved: ResolvedWeights) -> StoreEntry:
        """The model, which has completed its first inference, in memory reserved for it.

        Raises LoadFailed, MemoryBusy, and LoadCancelled soon after the ticket is cancelled.
        """
        await self.make_way(resolved.ticket)
        entry, store = await _DeviceLoad(self, resolved).run(), self.store
        excess = entry.memory_bytes - resolved.memory_bytes
        used = store.used_bytes + store.reserved_bytes + excess
        if excess > 0 and used > store.budget_bytes:
            store.evict_idle(used - store.budget_bytes, entry.key)
        return entry

    async def make_way(self, ticket: LoadTicket, missing_bytes: int = 0) -> bool:
        """Have outputs of steps copied from memory that a load needs; False if it gets none."""
        kept = self.device.kept
        if not kept.used_bytes:
            return False
        executor = self.resolver.threads.executor_for(ticket)
        return await in_thread(executor, kept.make_way, missing_bytes)


@dataclass(frozen=True, slots=True)
class _DeviceLoad:
    """One load from open weights to a served model."""

    loader: ModelLoader
    resolved: ResolvedWeights

    @property
    def spec(self) -> ModelSpec:
        return self.resolved.spec

    @property
    def executor(self) -> Executor:
        return self.loader.resolver.threads.executor_for(self.resolved.ticket)

    async def run(self) -> StoreEntry:
        """The model. Evicts idle models while the device is full, as many as what is missing."""
        while True:
            try:
                with self._device_errors():
                    return await self._run_once()
            except DeviceFull as error:
                release_frames(error)  # they hold a slab, or a network
                if await self.loader.make_way(self.resolved.ticket, max(1, error.missing_bytes)):
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
            if is_device_error(error) and not isinstance(error, PodError):
                raise DeviceFailed(f"the device failed while {key} was loaded: {error}") from error
            raise

    async def _run_once(self) -> StoreEntry:
        weights, skeleton = await self._weights_and_skeleton()
        await self._attach(skeleton, weights)
        network, processor, device = skeleton.network, self.resolved.processor, self.loader.device
        if isinstance(network, ServerModel | LoadedEstimator):
            return self._elsewhere(network, skeleton, weights)
        model = ServedModel(self.spec, processor=processor, network=network, device=device)
        # Of text generation no forward is captured: its caches are no tensors.
        is_text = isinstance(processor, TextOutputs)
        model.pads_to_buckets = skeleton.has_graphs and not is_text
        try:
            await self._warm_up(model, skeleton)
            await self.loader.padding.try_out(network, processor, device, model.device_model)
            if isinstance(processor, TextOutputs):
                await self._start_generator(model, skeleton, processor)
        except BaseException:
            model.stop()
            skeleton.detach()  # not kept, since it may have caused the failure
            weights.release()
            raise
        entry = self._entry(model, skeleton, weights)
        if self.resolved.engine.takes_dtype:  # it may be the base of adapters
            stored, taken = self.resolved.model, self.resolved.weights.layout.tensors
            entry.shared = SharedWeights(weights, stored.tensors, taken, stored.dtype)
        return entry

    def _elsewhere(
        self, network: ServerModel | LoadedEstimator, skeleton: Skeleton, weights: DeviceWeights
    ) -> StoreEntry:
        """A model that another process has loaded: it is ready as it is."""
        spec, resolver = self.spec, self.loader.resolver
        processor, device = self.resolved.processor, self.loader.device
        model: ServedModel
        if isinstance(network, ServerModel) and (server := resolver.server) is not None:
            model = ProxiedModel(
                spec, processor=processor, network=network, device=device, server=server
            )
        elif isinstance(network, LoadedEstimator) and resolver.estimators is not None:
            model = PickledModel(
                spec,
                processor=processor,
                network=network,
                device=device,
                estimators=resolver.estimators,
            )
        else:
            raise RuntimeError(f"{spec.key} was loaded without the process that infers it")
        entry = self._entry(model, skeleton, weights)
        # What was measured, or what its files suggest.
        entry.memory_bytes = max(self.resolved.memory_bytes, network.memory_bytes)
        return entry

    def _entry(self, model: ServedModel, skeleton: Skeleton, weights: DeviceWeights) -> StoreEntry:
        resolved = self.resolved

        def free() -> None:
            if model.device_model.broken_reason:  # a thread may hang in it forever
                skeleton.detach()
            else:
                self.loader.resolver.skeletons.put_back(skeleton)
            weights.release()
            resolved.lock.release()

        return StoreEntry(
            self.spec.key, resolved.memory_bytes, model=model, free=free, base=resolved.base
        )

    async def _attach(self, skeleton: Skeleton, weights: DeviceWeights) -> None:
        if not skeleton.copies_weights:
            base = self.resolved.base
            shared = None if base is None else base.shared
            own = {} if shared is None else shared.weights.tensors
            skeleton.attach(own | weights.tensors)
            return
        try:
            await in_thread(self.executor, skeleton.attach, weights.tensors)
        finally:
            weights.release()

    async def _weights_and_skeleton(self) -> tuple[DeviceWeights, Skeleton]:
        """Builds the skeleton while the weights arrive; its failure cancels their download."""
        weights, skeleton = await asyncio.gather(
            in_thread(self.executor, self._copy_weights),
            self._build_skeleton(),
            return_exceptions=True,
        )
        if isinstance(skeleton, BaseException):
            if not isinstance(weights, BaseException):
                weights.release()
            raise skeleton
        if isinstance(weights, BaseException):
            self.loader.resolver.skeletons.put_back(skeleton)
            raise weights
        return weights, skeleton

    def _copy_weights(self) -> DeviceWeights:
        if self.resolved.tier is not Tier.REMOTE:
            self.resolved.ticket.has_started = True
        memory = self.loader.resolver.memory if self.resolved.engine.uses_device else CpuMemory()
        return memory.put(self.resolved.weights, self.resolved.ticket)

    async def _build_skeleton(self) -> Skeleton:
        try:
            return await in_thread(self.executor, self._skeleton)
        except Exception as error:
            if not is_out_of_memory(error):  # an eviction may make the next attempt succeed
                self.resolved.ticket.cancel("its network cannot be built")
            raise

    def _skeleton(self) -> Skeleton:
        resolver, engine, model = self.loader.resolver, self.resolved.engine, self.resolved.model
        key = engine.skeleton_key(model)
        device, threads = resolver.memory.device, self.loader.device.thread_count
        build = partial(engine.build_skeleton, model, key=key, device=device, threads=threads)
        skeleton = resolver.skeletons.take(key, build)
        graphs = resolver.memory.graphs
        # Those of networks of transformers are captured.
        if graphs is not None and engine.takes_dtype and not skeleton.has_graphs:
            skeleton.use_graphs(ForwardGraphs(skeleton.network, graphs))
        return skeleton

    async def _warm_up(self, model: ServedModel, skeleton: Skeleton) -> None:
        """One inference, so that no request spends the time of the first one's setup.

        It prepares this process's code and buffers of the architecture. A reused skeleton has them
        already; all pages of the weights are in memory in any case.
        """
        if skeleton.has_inferred:
            return
        try:
            await model.warm_up()
        except PodError:
            raise
        except Exception as error:  # a network that cannot infer is not served
            if is_out_of_memory(error) or is_device_error(error):
                raise
            kind = getattr(getattr(skeleton.network, "config", None), "model_type", None)
            raise ModelInvalid(
                f"{self.spec.key}{f' ({kind})' if kind else ''} failed its first inference: {error}"
            ) from error
        skeleton.has_inferred = True

    async def _start_generator(
        self, model: ServedModel, skeleton: Skeleton, processor: TextOutputs
    ) -> None:
        """Create the generation engine on the device, and try it out."""
        network, device = skeleton.network, self.loader.device
        limits = self.resolved.generation or self.loader.resolver.generation_limits
        known = self.loader.trials.get(skeleton.key)
        make = partial(
            open_engine,
            network,
            device,
            model.device_model,
            limits,
            asyncio.get_running_loop(),
            pads_left=processor.batching.pads_left,
            known=known,
        )
        engine, trial = (await device.run(make, model=model.device_model)).value
        if engine and known and trial.is_continuous:  # the trial has run no step of this engine
            async for _ in engine.generate([0], Sampling(max_tokens=1, seed=0, temperature=0)):
                pass
        self.loader.trials[skeleton.key] = trial
        if not trial.is_padded:
            model.device_model.max_rows = 1
        model.generator = engine
