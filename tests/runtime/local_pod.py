"""A bringer with all its parts in this process: loads without a registry."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.pod import PodInfo
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.device.memory import CpuMemory, DeviceMemory
from runtime.device.worker import DeviceWorker
from runtime.generation.limits import GenerationLimits
from runtime.loading.load_coordinator import LoadCoordinator
from runtime.loading.model_loader import ModelLoader
from runtime.loading.model_store import ModelStore
from runtime.loading.model_tiers import Demotions
from runtime.loading.processors import Processors
from runtime.loading.weight_resolver import WeightResolver
from runtime.measurements import Measurements
from runtime.registry_agent import Inventory, RegistryAgent, TierState
from runtime.settings import RuntimeSettings
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.eviction import POLICIES, ReloadCosts
from runtime.tiers.host_tier import enter_host_tier


@dataclass
class LocalPod:
    """Loads, serves and unloads models."""

    loader: ModelLoader
    coordinator: LoadCoordinator
    """Without a registry, as when it is away: nobody is asked for claims."""
    demotions: Demotions
    moved: asyncio.Queue[str]
    """Models whose demotion has ended."""
    evictions: list[tuple[str, str, str | None]]
    """Key and reason of each removal from the device, and the model that needed the memory."""

    async def load(self, spec: ModelSpec) -> Tier:
        """Load a model to the device without a claim; returns the tier of its weights.

        A failure is forgotten, so that the next load begins at once.
        """
        try:
            acquired = await self.coordinator.acquire(spec)
        finally:
            self.coordinator._failures.clear(spec.key)
        self.loader.store.end_use(acquired.entry)
        return Tier(acquired.start)

    async def answer(self, spec: ModelSpec, text: str = "some words") -> list[bytes]:
        """The raw outputs of a model on the device."""
        entry = self.loader.store.acquire(spec.key)
        assert entry is not None
        try:
            inputs = entry.model.processor.preprocess([text])
            ran = await entry.model.infer(inputs)
            return [tensor.data.tobytes() for tensor in ran.value]
        finally:
            self.loader.store.end_use(entry)

    async def unload(self, spec: ModelSpec) -> None:
        """Take a model off the device."""
        assert self.loader.store.retire(spec.key, "test")

    async def demote(self, spec: ModelSpec) -> None:
        """Copy a model to the host tier and wait for it."""
        self.demotions.offer(spec)
        async with asyncio.timeout(60):
            while await self.moved.get() != spec.key:
                pass


@asynccontextmanager
async def local_pod(
    folder: Path,
    *,
    memory: DeviceMemory | None = None,
    budget_bytes: int = 1 << 30,
    host_bytes: int = 0,
    fills_host: bool = False,
    policy: str = "lru",
    cache_folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    link_rate: float | None = None,
    declared: Sequence[ModelSpec] = (),
    limits: GenerationLimits | None = None,
) -> AsyncIterator[LocalPod]:
    """A running `LocalPod`; host tier only with a budget for it.

    `fills_host`: a load leaves a copy there, as in a GPU's pod.
    `declared`: the models among which adapters find their bases.
    """
    memory = memory or CpuMemory()
    options = StorageOptions(environment=environment or {}, read_timeout_s=60)
    cache = DiskCache(cache_folder or folder / "cache", Storages(options), Bandwidth(link_rate))
    host = enter_host_tier(folder / "host", host_bytes)
    device = DeviceWorker(threads=1, max_queued=16)
    device.start()
    evictions: list[tuple[str, str, str | None]] = []
    store = ModelStore(
        budget_bytes,
        policy=POLICIES[policy],
        now_s=time.monotonic,
        on_removed=lambda entry, *why: evictions.append((entry.key, *why)),
    )
    store.on_added = lambda entry: demotions.offer(entry.model.spec) if fills_host else None
    with ThreadPoolExecutor(16) as threads:
        try:
            async with asyncio.TaskGroup() as tasks:
                by_name = {spec.name: spec for spec in declared}
                processors = Processors(cache, threads, tasks, declared=by_name.get)
                moved: asyncio.Queue[str] = asyncio.Queue()
                resolver = WeightResolver(
                    store,
                    cache,
                    host,
                    processors,
                    threads,
                    limits or RuntimeSettings().generation_limits,
                    memory,
                )
                demotions = Demotions(resolver, moved.put_nowait)
                running = tasks.create_task(demotions.run())
                loader = ModelLoader(resolver, device)
                coordinator = _make_coordinator(loader, tasks)
                yield LocalPod(loader, coordinator, demotions, moved, evictions)
                running.cancel()
        finally:
            cache.close()
            device.close()
            host.close()
            memory.close()


def _make_coordinator(loader: ModelLoader, tasks: asyncio.TaskGroup) -> LoadCoordinator:
    registry = Registry("redis://127.0.0.1:1/0", "nowhere")
    info = PodInfo("pod", "127.0.0.1:1", "node", "cpu", slots=1, memory_bytes=1 << 30)
    measurements = Measurements()
    inventory = Inventory(
        keys=set,
        tier_state=lambda _: TierState(Tier.REMOTE, 0),
        is_loading=lambda _: False,
        used_bytes=dict,
        loads_total=lambda: 0,
        idle_byte_s=lambda: 0.0,
        copies=dict,
    )
    agent = RegistryAgent(
        registry, info, inventory, measurements=measurements, heartbeat_s=1, lease_ttl_s=3
    )
    return LoadCoordinator(
        loader,
        agent=agent,
        watch=ClusterWatch(registry, counts=False),
        measurements=measurements,
        costs=ReloadCosts(),
        tasks=tasks,
    )


def spec_of(name: str, folder: Path) -> ModelSpec:
    """A model whose files are in `folder`."""
    return ModelSpec(ModelName("default", name), folder.as_uri())
