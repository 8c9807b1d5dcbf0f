"""The work of one load: room on the device, weights, the network, and a first inference.

Where the files come from is `finding`; they may be on their way while this module works.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from registry.domain.model import Tier
from runtime.device.device_errors import is_device_lost, is_out_of_memory
from runtime.engines.building import build_skeleton, skeleton_key
from runtime.errors import DeviceFull, ModelInvalid, PodDraining, RuntimePackageError
from runtime.generation.engine import Sampling
from runtime.generation.transformers_engine import TransformersEngine
from runtime.loading.served_model import ServedModel
from runtime.storage.load_ticket import LoadTicket, unless_cancelled
from runtime.tasks.text_generation import TextGeneration
from runtime.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from transformers import PreTrainedModel

    from registry.domain.model import ModelSpec
    from runtime.device.memory import DeviceMemory
    from runtime.device.worker import DeviceWorker
    from runtime.engines.networks.skeletons import Skeleton, Skeletons
    from runtime.loading.model_store import ModelStore
    from runtime.loading.weight_resolver import ResolvedWeights, WeightResolver
    from runtime.weights.slab import DeviceWeights


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A network that has made its first inference, in room reserved for it."""

    model: ServedModel
    memory_bytes: int
    source: Tier
    """Where its weights were."""
    release: Callable[[], None]
    """Gives its memory back."""


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Takes a model from wherever it is to the device, knowing nothing of claims."""

    store: ModelStore
    resolver: WeightResolver
    memory: DeviceMemory
    skeletons: Skeletons
    device: DeviceWorker
    request_threads: Executor

    async def bring(self, spec: ModelSpec, ticket: LoadTicket | None = None) -> LoadedModel:
        """The model, its room in the store still reserved.

        Raises LoadFailed, MemoryBusy, and LoadCancelled soon after the wish was withdrawn.
        """
        try:
            return await self._bring(spec, ticket or LoadTicket())
        except ModelInvalid:
            # The files may be mended at their source: the next try fetches them again.
            resolver = self.resolver
            await in_thread(resolver.threads, resolver.cache.discard, spec.key)
            await in_thread(resolver.threads, resolver.host.discard, spec.key)
            resolver.processors.forget(spec.key)
            raise

    async def _bring(self, spec: ModelSpec, ticket: LoadTicket) -> LoadedModel:
        resolver = self.resolver
        hold = await in_thread(resolver.threads, resolver.cache.lock_for_use, spec.key)
        try:
            async with resolver.find(spec, ticket) as found:
                loaded = await self._bring_found(spec, found, ticket)
        except BaseException:
            hold.release()
            raise
        return replace(loaded, release=_both(loaded.release, hold.release))

    async def _bring_found(
        self, spec: ModelSpec, found: ResolvedWeights, ticket: LoadTicket
    ) -> LoadedModel:
        memory_bytes = found.weights.layout.size_bytes + found.working_bytes
        await unless_cancelled(ticket, self.store.reserve(spec.key, memory_bytes))
        try:
            model, release = await self._put_on_device(spec, found, ticket)
        except BaseException:
            await self.store.cancel_reservation(spec.key)
            raise
        return LoadedModel(model, memory_bytes, found.tier, release)

    # The device

    async def _put_on_device(
        self, spec: ModelSpec, found: ResolvedWeights, ticket: LoadTicket
    ) -> tuple[ServedModel, Callable[[], None]]:
        """Put the model there, evicting one idle model after the other while the device is full."""
        while True:
            try:
                with self._told_apart(spec):
                    return await self._try_device(spec, found, ticket)
            except DeviceFull:
                if not await self.store.evict_one(spec.key):
                    raise

    @contextmanager
    def _told_apart(self, spec: ModelSpec) -> Iterator[None]:
        """An error of the device is none of the model: it is full, or its pod is replaced."""
        try:
            yield
        except Exception as error:
            if is_device_lost(error):
                self.device.mark_lost(error)
                raise PodDraining(f"the pod's device failed while {spec.key} was loaded") from error
            if is_out_of_memory(error) and not isinstance(error, DeviceFull):
                raise DeviceFull(f"{spec.key} has no room: {error}") from error
            raise

    async def _try_device(
        self, spec: ModelSpec, found: ResolvedWeights, ticket: LoadTicket
    ) -> tuple[ServedModel, Callable[[], None]]:
        weights, skeleton = await self._weights_and_skeleton(spec, found, ticket)
        skeleton.attach(weights.tensors)
        model = ServedModel(
            spec,
            processor=found.processor,
            network=skeleton.network,
            device=self.device,
            threads=self.request_threads,
        )
        try:
            await self._warm_up(model, skeleton)
            if isinstance(found.processor, TextGeneration):
                await self._start_generator(model, skeleton.network)
        except BaseException:
            model.stop()
            skeleton.detach()  # it is not kept: what made it fail may lie in it
            weights.release()
            raise
        return model, lambda: self._release(model, skeleton, weights)

    async def _weights_and_skeleton(
        self, spec: ModelSpec, found: ResolvedWeights, ticket: LoadTicket
    ) -> tuple[DeviceWeights, Skeleton]:
        """The skeleton is built while the weights come; where it cannot be, they need not come."""
        weights, skeleton = await asyncio.gather(
            in_thread(self.resolver.threads.of(ticket), self._put, found, ticket),
            self._build_skeleton(spec, found, ticket),
            return_exceptions=True,
        )
        if isinstance(skeleton, BaseException):
            if not isinstance(weights, BaseException):
                weights.release()
            raise skeleton
        if isinstance(weights, BaseException):
            self.skeletons.put_back(skeleton)
            raise weights
        return weights, skeleton

    def _put(self, found: ResolvedWeights, ticket: LoadTicket) -> DeviceWeights:
        if found.tier is not Tier.REMOTE:
            ticket.mark_started()
        return self.memory.put(found.weights)

    async def _build_skeleton(
        self, spec: ModelSpec, found: ResolvedWeights, ticket: LoadTicket
    ) -> Skeleton:
        try:
            return await in_thread(self.resolver.threads.of(ticket), self._skeleton, spec, found)
        except Exception as error:
            if not is_out_of_memory(error):  # with room, the next try may build it
                ticket.cancel("its network cannot be built")
            raise

    def _skeleton(self, spec: ModelSpec, found: ResolvedWeights) -> Skeleton:
        tensors = found.weights.layout.tensors
        key = skeleton_key(found.folder, spec.task, tensors)
        return self.skeletons.take(
            key,
            lambda: build_skeleton(
                found.folder, spec.task, tensors, key=key, device=self.memory.device
            ),
        )

    def _release(self, model: ServedModel, skeleton: Skeleton, weights: DeviceWeights) -> None:
        if model.is_broken:  # a thread may be in it for ever
            skeleton.detach()
        else:
            self.skeletons.put_back(skeleton)
        weights.release()

    async def _warm_up(self, model: ServedModel, skeleton: Skeleton) -> None:
        """One inference, so that no request pays for what the first one sets up.

        That is code and buffers of the architecture in this process, which a kept skeleton has
        behind it; the weights are in memory already, to the last page.
        """
        if skeleton.has_inferred:
            return
        try:
            await model.warm_up()
        except RuntimePackageError:
            raise
        except Exception as error:  # a network that cannot infer once is not served
            if is_out_of_memory(error):
                raise
            raise ModelInvalid(f"{model.spec.key} failed its first inference: {error}") from error
        skeleton.has_inferred = True

    async def _start_generator(self, model: ServedModel, network: PreTrainedModel) -> None:
        """The engine, made on the device, and one token of it."""
        loop, limits = asyncio.get_running_loop(), self.resolver.generation_limits
        make = partial(TransformersEngine, network, self.device, model.device_model, limits, loop)
        engine = (await self.device.run(make, model=model.device_model)).value
        async for _ in engine.generate([0], Sampling(max_tokens=1, seed=0, temperature=0)):
            pass
        model.generator = engine


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call
