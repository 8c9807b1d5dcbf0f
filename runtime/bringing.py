"""The work of one load: files, room on the device, the network, and a first inference."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.errors import ModelInvalid, RuntimePackageError
from runtime.network import load_network
from runtime.served_model import ServedModel
from runtime.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from registry.model import ModelSpec
    from runtime.device import DeviceWorker
    from runtime.disk_cache import DiskCache
    from runtime.frontends import Frontends
    from runtime.store import ModelStore
    from runtime.tasks.task import Frontend


@dataclass(frozen=True, slots=True)
class Loaded:
    """A network that has made its first inference, in room reserved for it."""

    model: ServedModel
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Bringer:
    """Takes a model from wherever it is to the device, knowing nothing of claims."""

    store: ModelStore
    cache: DiskCache
    frontends: Frontends
    device: DeviceWorker
    threads: Executor
    """For loads, which block on disk and network."""
    request_threads: Executor

    async def bring(self, spec: ModelSpec) -> Loaded:
        """The model, its room in the store still reserved; raises LoadFailed, MemoryBusy."""
        try:
            return await self._bring(spec)
        except ModelInvalid:
            # The files may be mended at their source: the next try fetches them again.
            await in_thread(self.threads, self.cache.discard, spec.key)
            self.frontends.forget(spec.key)
            raise

    async def _bring(self, spec: ModelSpec) -> Loaded:
        folder = await self.frontends.folder(spec)
        files = await in_thread(self.threads, self.cache.weight_files, spec)
        memory_bytes = sum(file.size_bytes for file in files)
        self.store.check_fits(spec.key, memory_bytes)
        frontend, paths = await self._fetch(spec)
        await self.store.reserve(spec.key, memory_bytes)
        try:
            network = await in_thread(self.threads, load_network, folder, paths, spec.task)
            model = ServedModel(
                spec,
                frontend=frontend,
                network=network,
                device=self.device,
                threads=self.request_threads,
            )
            await self._warm_up(model)
        except BaseException:
            await self.store.cancel_reservation(spec.key)
            raise
        return Loaded(model, memory_bytes)

    async def _fetch(self, spec: ModelSpec) -> tuple[Frontend, Sequence[Path]]:
        """Read the tokenizer while the weights are on their way."""
        frontend, paths = await asyncio.gather(
            self.frontends.get(spec),
            in_thread(self.threads, self.cache.fetch_weights, spec),
            return_exceptions=True,
        )
        if isinstance(frontend, BaseException):
            raise frontend
        if isinstance(paths, BaseException):
            raise paths
        return frontend, paths

    async def _warm_up(self, model: ServedModel) -> None:
        """One inference, so that no request pays for what the first one sets up."""
        try:
            await model.warm_up()
        except RuntimePackageError:
            raise
        except Exception as error:  # a network that cannot infer once is not served
            raise ModelInvalid(f"{model.spec.key} failed its first inference: {error}") from error
