"""A bringer with all its parts in this process: loads without a registry."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.model import ModelName, ModelSpec
from runtime.bringing import Bringer
from runtime.demotion import Demotions
from runtime.device import DeviceWorker
from runtime.device_memory import CpuMemory
from runtime.disk_cache import DiskCache
from runtime.eviction import POLICIES
from runtime.finding import Finder
from runtime.frontends import Frontends
from runtime.host_tier import enter_host_tier
from runtime.link import LinkRate
from runtime.load_threads import LoadThreads
from runtime.settings import PodSettings
from runtime.skeletons import Skeletons
from runtime.storages import Storages
from runtime.store import Eviction, ModelStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from registry.model import Tier
    from runtime.device_memory import DeviceMemory


@dataclass
class LocalPod:
    """Loads, serves and unloads models."""

    bringer: Bringer
    demotions: Demotions
    moved: asyncio.Queue[str]
    """Models whose demotion has ended."""
    evictions: list[Eviction]

    async def load(self, spec: ModelSpec) -> Tier:
        """Bring a model to the device; returns where its weights were."""
        loaded = await self.bringer.bring(spec)
        self.bringer.store.add(loaded.model, loaded.memory_bytes, loaded.release)
        return loaded.source

    async def answer(self, spec: ModelSpec, text: str = "some words") -> list[bytes]:
        """The raw outputs of a model on the device."""
        resident = self.bringer.store.pin(spec.key)
        assert resident is not None
        try:
            inputs = resident.model.frontend.preprocess([text])
            ran = await resident.model.infer(inputs)
            return [tensor.data.tobytes() for tensor in ran.value]
        finally:
            await self.bringer.store.unpin(resident)

    async def unload(self, spec: ModelSpec) -> None:
        """Take a model off the device."""
        assert await self.bringer.store.retire(spec.key, "test")

    async def demote(self, spec: ModelSpec) -> None:
        """Copy a model to the host tier and wait for it."""
        self.demotions.offer(spec)
        assert await asyncio.wait_for(self.moved.get(), 10) == spec.key


@asynccontextmanager
async def local_pod(
    folder: Path,
    *,
    memory: DeviceMemory | None = None,
    budget_bytes: int = 1 << 30,
    host_bytes: int = 0,
    policy: str = "lru",
) -> AsyncIterator[LocalPod]:
    """A running `LocalPod`; host tier only with a budget for it."""
    memory = memory or CpuMemory()
    cache = DiskCache(folder / "cache", Storages(), LinkRate(None))
    host = enter_host_tier(folder / "host", host_bytes)
    device = DeviceWorker(threads=1, most_waiting=16)
    device.start()
    evictions: list[Eviction] = []
    store = ModelStore(budget_bytes, evictions.append, policy=POLICIES[policy])
    with LoadThreads(6) as threads:
        try:
            async with asyncio.TaskGroup() as tasks:
                frontends = Frontends(cache, threads, tasks)
                moved: asyncio.Queue[str] = asyncio.Queue()
                demotions = Demotions(host, cache, threads, moved.put_nowait)
                running = tasks.create_task(demotions.run())
                limits = PodSettings().generation_limits
                finder = Finder(store, cache, host, frontends, threads, limits)
                bringer = Bringer(store, finder, memory, Skeletons(), device, threads)
                yield LocalPod(bringer, demotions, moved, evictions)
                running.cancel()
        finally:
            device.close()
            host.close()
            memory.close()


def spec_of(name: str, folder: Path) -> ModelSpec:
    """A model whose files are in `folder`."""
    return ModelSpec(ModelName("default", name), folder.as_uri())
