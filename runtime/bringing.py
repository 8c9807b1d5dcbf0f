"""The work of one load: files, room on the device, weights, the network, and a first inference."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from registry.model import Tier
from runtime.building import build_skeleton, signature_of
from runtime.errors import DeviceFull, ModelInvalid, RuntimePackageError
from runtime.generation.engine import Sampling
from runtime.generation.limits import cache_bytes
from runtime.generation.transformers_engine import TransformersEngine
from runtime.served_model import ServedModel
from runtime.tasks.text_generation import TextGeneration
from runtime.threads import in_thread
from runtime.weight_source import DiskWeights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from transformers import PreTrainedModel

    from registry.model import ModelSpec
    from runtime.device import DeviceWorker
    from runtime.device_memory import DeviceMemory, DeviceWeights
    from runtime.disk_cache import DiskCache
    from runtime.frontends import Frontends
    from runtime.generation.limits import GenerationLimits
    from runtime.host_tier import HostTier
    from runtime.skeletons import Skeleton, Skeletons
    from runtime.storage import RemoteFile
    from runtime.store import ModelStore
    from runtime.tasks.task import Frontend
    from runtime.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Loaded:
    """A network that has made its first inference, in room reserved for it."""

    model: ServedModel
    memory_bytes: int
    source: Tier
    """Where its weights were."""
    release: Callable[[], None]
    """Gives its memory back."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A model's weights, open for reading, and what serves it beside them."""

    folder: Path
    frontend: Frontend
    weights: WeightSource
    tier: Tier
    working_bytes: int
    """Memory it takes on the device beside its weights."""


@dataclass(frozen=True, slots=True)
class Bringer:
    """Takes a model from wherever it is to the device, knowing nothing of claims."""

    store: ModelStore
    cache: DiskCache
    host: HostTier
    memory: DeviceMemory
    skeletons: Skeletons
    frontends: Frontends
    device: DeviceWorker
    threads: Executor
    """For loads, which block on disk and network."""
    request_threads: Executor
    generation_limits: GenerationLimits

    async def nearest_tier(self, key: str) -> Tier:
        """Where a load of the model would start now."""
        if self.host.bytes_of(key):
            return Tier.HOST
        is_cached = await in_thread(self.threads, self.cache.has_weights, key)
        return Tier.DISK if is_cached else Tier.REMOTE

    async def bring(self, spec: ModelSpec) -> Loaded:
        """The model, its room in the store still reserved; raises LoadFailed, MemoryBusy."""
        try:
            return await self._bring(spec)
        except ModelInvalid:
            # The files may be mended at their source: the next try fetches them again.
            await in_thread(self.threads, self.cache.discard, spec.key)
            await in_thread(self.threads, self.host.discard, spec.key)
            self.frontends.forget(spec.key)
            raise

    async def _bring(self, spec: ModelSpec) -> Loaded:
        hold = await in_thread(self.threads, self.cache.hold, spec.key)
        try:
            loaded = await self._bring_held(spec)
        except BaseException:
            hold.release()
            raise
        return replace(loaded, release=_both(loaded.release, hold.release))

    async def _bring_held(self, spec: ModelSpec) -> Loaded:
        found = await self._find(spec)
        try:
            memory_bytes = found.weights.layout.size_bytes + found.working_bytes
            await self.store.reserve(spec.key, memory_bytes)
            try:
                model, release = await self._put_on_device(spec, found)
            except BaseException:
                await self.store.cancel_reservation(spec.key)
                raise
        finally:
            found.weights.close()
        return Loaded(model, memory_bytes, found.tier, release)

    # Files

    async def _find(self, spec: ModelSpec) -> _Found:
        """The model's files, fetched if need be; the tokenizer is read meanwhile."""
        # Asked first: a program's small files and its weights are one file.
        is_cached = await in_thread(self.threads, self.cache.has_weights, spec.key)
        folder = await self.frontends.folder(spec)
        files = await in_thread(self.threads, self.cache.weight_files, spec)
        working_bytes = await in_thread(
            self.threads, cache_bytes, folder, spec.task, self.generation_limits
        )
        self.store.check_fits(spec.key, sum(file.size_bytes for file in files) + working_bytes)
        frontend, weights = await asyncio.gather(
            self.frontends.get(spec),
            self._open(spec, files, is_cached=is_cached),
            return_exceptions=True,
        )
        if isinstance(frontend, BaseException):  # the first cause: it takes the files away
            if not isinstance(weights, BaseException):
                weights[0].close()
            raise frontend
        if isinstance(weights, BaseException):
            raise weights
        source, tier = weights
        return _Found(folder, frontend, source, tier, working_bytes)

    async def _open(
        self, spec: ModelSpec, files: Sequence[RemoteFile], *, is_cached: bool
    ) -> tuple[WeightSource, Tier]:
        image = await in_thread(self.threads, self.host.open, spec.key, files)
        if image is not None:
            return image, Tier.HOST
        paths = await in_thread(self.threads, self.cache.fetch_weights, spec)
        source = await in_thread(self.threads, DiskWeights, paths)
        return source, Tier.DISK if is_cached else Tier.REMOTE

    # The device

    async def _put_on_device(
        self, spec: ModelSpec, found: _Found
    ) -> tuple[ServedModel, Callable[[], None]]:
        """Put the model there, evicting one idle model after the other while the device is full."""
        while True:
            try:
                return await self._try_device(spec, found)
            except DeviceFull:
                if not await self.store.evict_one(spec.key):
                    raise

    async def _try_device(
        self, spec: ModelSpec, found: _Found
    ) -> tuple[ServedModel, Callable[[], None]]:
        weights = await in_thread(self.threads, self.memory.put, found.weights)
        try:
            skeleton = await in_thread(self.threads, self._skeleton, spec, found)
        except BaseException:
            weights.release()
            raise
        skeleton.put_in(weights.tensors)
        model = ServedModel(
            spec,
            frontend=found.frontend,
            network=skeleton.network,
            device=self.device,
            threads=self.request_threads,
        )
        try:
            await self._warm_up(model, skeleton)
            if isinstance(found.frontend, TextGeneration):
                await self._start_generator(model, skeleton.network)
        except BaseException:
            model.stop()
            skeleton.take_out()  # it is not kept: what made it fail may lie in it
            weights.release()
            raise
        return model, lambda: self._release(model, skeleton, weights)

    def _skeleton(self, spec: ModelSpec, found: _Found) -> Skeleton:
        tensors = found.weights.layout.tensors
        signature = signature_of(found.folder, spec.task, tensors)
        return self.skeletons.take(
            signature,
            lambda: build_skeleton(
                found.folder, spec.task, tensors, signature=signature, device=self.memory.device
            ),
        )

    def _release(self, model: ServedModel, skeleton: Skeleton, weights: DeviceWeights) -> None:
        if model.is_broken:  # a thread may be in it for ever
            skeleton.take_out()
        else:
            self.skeletons.give_back(skeleton)
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
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise DeviceFull(f"{model.spec.key} has no room to infer: {error}") from error
        except Exception as error:  # a network that cannot infer once is not served
            raise ModelInvalid(f"{model.spec.key} failed its first inference: {error}") from error
        skeleton.has_inferred = True

    async def _start_generator(self, model: ServedModel, network: PreTrainedModel) -> None:
        """The engine, made on the device, and one token of it."""
        loop = asyncio.get_running_loop()
        make = partial(
            TransformersEngine, network, self.device, model.lane, self.generation_limits, loop
        )
        engine = (await self.device.run(make, lane=model.lane)).value
        async for _ in engine.generate([0], Sampling(max_tokens=1, seed=0, temperature=0)):
            pass
        model.generator = engine


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call
