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
from typing import Any

from common.inference_protocol import PodError
from registry.domain.model import Tier
from runtime.device.device_errors import (
    is_device_error,
    is_device_lost,
    is_out_of_memory,
    release_frames,
)
from runtime.device.memory import CpuMemory
from runtime.device.worker import DeviceWorker
from runtime.engines.engine import Skeleton
from runtime.engines.process_engine import EngineModel
from runtime.engines.server_engine import ServerModel
from runtime.errors import DeviceFailed, DeviceFull, ModelInvalid, PodDraining
from runtime.generation.engine import Sampling
from runtime.generation.engine_factory import BatchTrial, open_engine
from runtime.loading.external_model import EngineServed, ProxiedModel, SandboxedModel
from runtime.loading.load_queue import Load
from runtime.loading.model_store import ModelStore, ServedModel, SharedWeights, StoreEntry
from runtime.loading.weight_resolver import OpenWeights, WeightResolver
from runtime.sandbox.estimators import LoadedEstimator
from runtime.tasks.processors import PaddingTrials
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

    async def nearest_tier(self, key: str) -> Tier:
        """The tier that a load of the model would start from now."""
        engines = self.resolver.engines
        if self.resolver.host.bytes_of(key) or (engines is not None and engines.asleep_bytes(key)):
            return Tier.HOST
        is_cached = await in_thread(self.resolver.threads, self.resolver.cache.has_weights, key)
        return Tier.DISK if is_cached else Tier.REMOTE

    @asynccontextmanager
    async def open(self, load: Load[Any], base: StoreEntry | None) -> AsyncIterator[OpenWeights]:
        """The open weights, of an adapter with its base in use; raises LoadFailed, LoadCancelled.

        Their files are protected from deletion until the model is off the device, if the block
        ends without an error.
        """
        resolver, key = self.resolver, load.spec.key
        lock = await in_thread(resolver.threads, resolver.cache.lock_for_use, key)
        try:
            async with resolver.resolve(load.spec, load.ticket, lock, base) as weights:
                yield weights
        except BaseException as error:
            lock.release()
            if isinstance(error, ModelInvalid):
                # The source may be corrected: the next attempt fetches the files again.
                await in_thread(resolver.threads, resolver.cache.discard, key)
                await in_thread(resolver.threads, resolver.host.discard, key)
                resolver.processors.forget(key)
            raise

    async def copy(self, load: Load[Any], weights: OpenWeights) -> StoreEntry:
        """The model, which has completed its first inference, in memory reserved for it.

        Evicts idle models while the device is full, as many as what is missing. Raises LoadFailed,
        MemoryBusy, and LoadCancelled soon after the ticket is cancelled.
        """
        store = self.store
        while True:
            try:
                with self._device_errors(load.spec.key):
                    entry = await self._copy_once(weights)
                    break
            except DeviceFull as error:
                release_frames(error)  # they hold a slab, or a network
                if not store.evict_idle(error.missing_bytes, load.spec.key):
                    raise
        excess = entry.memory_bytes - weights.memory_bytes
        used = store.used_bytes + store.reserved_bytes + excess
        if excess > 0 and used > store.budget_bytes:
            store.evict_idle(used - store.budget_bytes, entry.key)
        return entry

    @contextmanager
    def _device_errors(self, key: str) -> Iterator[None]:
        """Device errors are not attributed to the model, whose files are kept.

        Raises DeviceFull, DeviceFailed or PodDraining in their place.
        """
        try:
            yield
        except Exception as error:
            if is_device_lost(error):
                self.device.mark_lost(error)
                raise PodDraining(f"the pod's device failed while {key} was loaded") from error
            if is_out_of_memory(error) and not isinstance(error, DeviceFull):
                raise DeviceFull(f"the device has no memory for {key}: {error}") from error
            if is_device_error(error) and not isinstance(error, PodError):
                raise DeviceFailed(f"the device failed while {key} was loaded: {error}") from error
            raise

    async def _copy_once(self, opened: OpenWeights) -> StoreEntry:
        executor = self.resolver.threads
        opened.ticket.raise_if_cancelled()
        weights, skeleton = await self._weights_and_skeleton(opened, executor)
        await _attach(skeleton, weights, opened.base, executor)
        network, processor, device = skeleton.network, opened.processor, self.device
        if isinstance(network, ServerModel | LoadedEstimator | EngineModel):
            model = self._elsewhere(network, opened)
            entry = self._entry(opened, model, skeleton, weights)
            # What was measured, or what its files suggest.
            is_exact = isinstance(network, EngineModel)
            suggested = 0 if is_exact else opened.memory_bytes
            entry.memory_bytes = max(suggested, network.memory_bytes)
            return entry
        model = ServedModel(opened.spec, processor=processor, network=network, device=device)
        try:
            await _warm_up(model, skeleton)
            await self.padding.try_out(network, processor, device, model.device_model)
            if isinstance(processor, TextOutputs):
                await self._start_generator(model, skeleton, processor)
        except BaseException:
            model.stop()
            skeleton.detach()  # not kept, since it may have caused the failure
            weights.release()
            raise
        entry = self._entry(opened, model, skeleton, weights)
        if opened.engine.takes_dtype:  # it may be the base of adapters
            stored, taken = opened.model, opened.weights.layout.tensors
            entry.shared = SharedWeights(weights, stored.tensors, taken, stored.dtype)
        return entry

    def _elsewhere(
        self, network: ServerModel | LoadedEstimator | EngineModel, opened: OpenWeights
    ) -> ServedModel:
        """A model that another process has loaded: it is ready as it is."""
        resolver = self.resolver
        common: Any = {"spec": opened.spec, "processor": opened.processor, "device": self.device}
        if isinstance(network, ServerModel) and resolver.server is not None:
            return ProxiedModel(network=network, owner=resolver.server, **common)
        if isinstance(network, LoadedEstimator) and resolver.estimators is not None:
            return SandboxedModel(network=network, owner=resolver.estimators, **common)
        if isinstance(network, EngineModel) and resolver.engines is not None:
            return EngineServed(network=network, owner=resolver.engines, **common)
        raise RuntimeError("a model was loaded without the process that infers it")

    def _entry(
        self, opened: OpenWeights, model: ServedModel, skeleton: Skeleton, weights: DeviceWeights
    ) -> StoreEntry:
        def free() -> None:
            if model.device_model.broken_reason:  # a thread may hang in it forever
                skeleton.detach()
            else:
                self.resolver.skeletons.put_back(skeleton)
            weights.release()
            lock.release()

        lock = opened.lock  # alone: the entry must not keep what was open for its load
        return StoreEntry(
            opened.spec.key, opened.memory_bytes, model=model, free=free, base=opened.base
        )

    async def _weights_and_skeleton(
        self, opened: OpenWeights, executor: Executor
    ) -> tuple[DeviceWeights, Skeleton]:
        """Builds the skeleton while the weights arrive; its failure cancels their download."""
        weights, skeleton = await asyncio.gather(
            in_thread(executor, self._copy_weights, opened),
            self._build_skeleton(opened, executor),
            return_exceptions=True,
        )
        if isinstance(skeleton, BaseException):
            if not isinstance(weights, BaseException):
                weights.release()
            raise skeleton
        if isinstance(weights, BaseException):
            self.resolver.skeletons.put_back(skeleton)
            raise weights
        return weights, skeleton

    def _copy_weights(self, opened: OpenWeights) -> DeviceWeights:
        if opened.tier is not Tier.REMOTE:
            opened.ticket.has_started = True
        memory = self.resolver.memory if opened.engine.uses_device else CpuMemory()
        return memory.put(opened.weights, opened.ticket)

    async def _build_skeleton(self, opened: OpenWeights, executor: Executor) -> Skeleton:
        try:
            return await in_thread(executor, self._skeleton, opened)
        except Exception as error:
            if not is_out_of_memory(error):  # an eviction may make the next attempt succeed
                opened.ticket.cancel("its network cannot be built")
            raise

    def _skeleton(self, opened: OpenWeights) -> Skeleton:
        resolver, engine, model = self.resolver, opened.engine, opened.model
        key = engine.skeleton_key(model)
        device, threads = resolver.memory.device, self.device.thread_count
        build = partial(engine.build_skeleton, model, key=key, device=device, threads=threads)
        return resolver.skeletons.take(key, build)

    async def _start_generator(
        self, model: ServedModel, skeleton: Skeleton, processor: TextOutputs
    ) -> None:
        """Create the generation engine on the device, and try it out."""
        network, device = skeleton.network, self.device
        known = self.trials.get(skeleton.key)
        make = partial(
            open_engine,
            network,
            device,
            model.device_model,
            self.resolver.generation_limits,
            asyncio.get_running_loop(),
            pads_left=processor.batching.pads_left,
            known=known,
        )
        engine, trial = (await device.run(make, model=model.device_model)).value
        if engine and known and trial.is_continuous:  # the trial has run no step of this engine
            async for _ in engine.generate([0], Sampling(max_tokens=1, seed=0, temperature=0)):
                pass
        self.trials[skeleton.key] = trial
        if not trial.is_padded:
            model.device_model.max_rows = 1
        model.generator = engine


async def _attach(
    skeleton: Skeleton, weights: DeviceWeights, base: StoreEntry | None, executor: Executor
) -> None:
    if not skeleton.copies_weights:
        shared = None if base is None else base.shared
        own = {} if shared is None else shared.weights.tensors
        skeleton.attach(own | weights.tensors)
        return
    try:
        await in_thread(executor, skeleton.attach, weights.tensors)
    finally:
        weights.release()


async def _warm_up(model: ServedModel, skeleton: Skeleton) -> None:
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
            f"{model.spec.key}{f' ({kind})' if kind else ''} failed its first inference: {error}"
        ) from error
    skeleton.has_inferred = True
