"""The components that hold and load a pod's models, and report them to the registry."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from common.pod_secret import PodSecret
from common.tls import PartTls
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod import Accelerator, PodInfo, host_port
from registry.inference_service.tenant_rules import Quota, TenantRules
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.device.accelerator import memory_budget, pod_share
from runtime.device.device_tensor import DEFAULT_SHARE, KeptMemory
from runtime.device.gpu_sensors import GpuWatch
from runtime.device.memory import DeviceMemory
from runtime.device.queue import GPU_SEQUENCES
from runtime.device.worker import DeviceWorker
from runtime.engines.model_server.server_engine import ModelServer
from runtime.engines.model_server.server_process import ServerProcess
from runtime.generation.limits import GPU_CACHE_SHARE, GenerationLimits
from runtime.loading.load_coordinator import LoadCoordinator
from runtime.loading.load_threads import LoadThreads
from runtime.loading.model_loader import ModelLoader
from runtime.loading.model_store import ModelStore, StoreEntry
from runtime.loading.model_tiers import Demotions, tier_state, used_bytes
from runtime.loading.processors import Bases, Processors
from runtime.loading.weight_resolver import WeightResolver
from runtime.metrics import IDLE_MEMORY, KEPT_DEVICE_TENSOR_BYTES
from runtime.registration.measurements import Measurements
from runtime.registration.registry_agent import Inventory, RegistryAgent
from runtime.sandbox.estimators import Estimators
from runtime.sandbox.pool import Sandbox
from runtime.serving.remote_inference import RemoteInference
from runtime.settings import RuntimeSettings
from runtime.storage.access import NamespaceSecrets
from runtime.storage.bandwidth import Bandwidth
from runtime.storage.declared_files import MODEL_SERVER, OWN_ENGINES, WITH_PICKLES, FileRules
from runtime.storage.storages import StorageOptions, Storages
from runtime.threads import RequestThreads
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.eviction import ReloadCosts, greedy_dual, tier_after_eviction
from runtime.tiers.host_tier import HostTier

CLAIM_MOUNTS: Final = Path("/mnt/pvc")
"""Where claims of pvc:// are mounted, by name: the pool's manifest decides it, for all pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContext:
    """The resources of a pod that its lifecycle opens and closes."""

    settings: RuntimeSettings
    port: int
    registry: Registry
    secret: PodSecret
    tls: PartTls
    remote: RemoteInference
    sandbox: Sandbox
    device: DeviceWorker
    memory: DeviceMemory
    host: HostTier
    load_threads: LoadThreads
    request_threads: RequestThreads
    sandbox_threads: Executor
    """For requests that wait for the sandbox."""
    tasks: asyncio.TaskGroup
    end_pod: Callable[[], None]
    restart_pod: Callable[[], None]
    accelerator: Accelerator
    slots: int
    server: ModelServer | None = None
    """What runs the pod's models in its place."""
    server_process: ServerProcess | None = None
    """Of a server that the pod starts itself."""
    estimators: Estimators | None = None
    """Runs pickled models; None: they are refused."""

    @property
    def memory_bytes(self) -> int:
        return memory_budget(self.settings.memory_bytes, self.accelerator, os.environ)

    @property
    def kept_device_bytes(self) -> int:
        """Limit of steps' outputs on the device."""
        configured = self.settings.kept_device_bytes
        if configured is not None:
            return configured
        return int(DEFAULT_SHARE * self.memory_bytes) if self.accelerator.uuid else 0

    @property
    def generation_limits(self) -> GenerationLimits:
        """As configured; a GPU pod's key-value caches follow its memory, and count with a step."""
        limits = self.settings.generation_limits
        if not self.accelerator.uuid:
            return limits
        settings = self.settings
        return replace(
            limits,
            cache_bytes=settings.generation_cache_bytes or int(self.memory_bytes * GPU_CACHE_SHARE),
            max_concurrent=GPU_SEQUENCES,
            counts_steps=True,
        )

    @property
    def info(self) -> PodInfo:
        settings = self.settings
        return PodInfo(
            name=settings.name,
            address=host_port(
                settings.advertise or settings.host, settings.advertise_port or self.port
            ),
            node=settings.node_name,
            device=str(self.memory.device),
            slots=self.slots,
            memory_bytes=self.memory_bytes,
            link_bytes_per_s=settings.link_rate or None,
            process_id=os.getpid(),
            uid=settings.pod_uid,
            accelerator=self.accelerator,
            share=pod_share(
                self.accelerator, os.environ, settings.share if settings.cores else 0.0
            ),
            placed_model=settings.placed_model,
            place=settings.place,
            takes_places=settings.takes_places,
            max_share=settings.max_share / 100 if settings.max_share else 1.0,
            has_server=settings.has_server,
            shared_memory=self.host.sockets.identity if self.host.sockets is not None else "",
        )


@dataclass(frozen=True, slots=True)
class LoadingComponents:
    watch: ClusterWatch
    measurements: Measurements
    costs: ReloadCosts
    cache: DiskCache
    host: HostTier
    store: ModelStore
    agent: RegistryAgent
    processors: Processors
    demotions: Demotions
    coordinator: LoadCoordinator
    gpu: GpuWatch


def compose_loading(context: PodContext) -> LoadingComponents:
    settings, host, threads = context.settings, context.host, context.load_threads
    rules = settings.rules
    watch = ClusterWatch(context.registry, counts=False)
    measurements, costs = Measurements(), ReloadCosts()
    cache = _disk_cache(settings)

    def on_removed(entry: StoreEntry, _reason: str, evicted_for: str | None) -> None:
        agent.report_tier(entry.key)
        if evicted_for is not None:
            demotions.offer(entry.model.spec)

    def reload_s(key: str, size_bytes: int) -> float:
        tier = tier_after_eviction(
            size_bytes,
            host_bytes=host.bytes_of(key),
            host_budget_bytes=host.budget_bytes,
            is_on_disk=cache.bytes_on_disk(key) > 0,
        )
        return costs.estimate_s(key, tier, size_bytes)

    store = ModelStore(
        context.memory_bytes,
        on_removed,
        policy=greedy_dual,
        reload_s=reload_s,
        quota_of=lambda namespace: rules.quota(namespace, Quota.MEMORY),
        on_taken=_keep_outputs(context).models_take,
    )
    IDLE_MEMORY.set_function(lambda: store.idle_byte_s)
    gpu = GpuWatch(context.accelerator, context.device.mark_lost, interval_s=settings.heartbeat_s)
    agent = RegistryAgent(
        context.registry,
        context.info,
        Inventory(
            keys=lambda: cache.keys() | host.keys() | store.by_key.keys() | processors.keys(),
            tier_state=lambda key: tier_state(key, store, host, cache, processors),
            is_loading=lambda key: coordinator.is_loading(key),
            used_bytes=lambda: used_bytes(store, host, cache, agent),
            loads_total=lambda: coordinator.completed_total,
            idle_byte_s=lambda: store.idle_byte_s,
            copies=lambda: store.copy_reports(),
            gpu=lambda: gpu.reading,
        ),
        measurements=measurements,
        heartbeat_s=settings.heartbeat_s,
        lease_ttl_s=settings.lease_ttl,
    )
    host.on_no_room = context.memory.drop_registered
    processors = Processors(
        cache,
        threads,
        context.tasks,
        agent.report_tier,
        sandbox=context.sandbox,
        bases=Bases(lambda name: _declared(watch, name)),
        server=context.server,
    )
    resolver = WeightResolver(
        store,
        cache,
        host,
        processors,
        threads,
        context.generation_limits,
        context.memory,
        context.server,
        context.estimators,
    )
    demotions = Demotions(resolver, agent.report_tier)
    if context.estimators is not None:
        context.estimators.on_lost = lambda key: _retire_lost(store, key)
    loader = ModelLoader(resolver, context.device)
    coordinator = LoadCoordinator(
        loader,
        agent=agent,
        watch=watch,
        measurements=measurements,
        costs=costs,
        tasks=context.tasks,
    )
    return LoadingComponents(
        watch,
        measurements,
        costs,
        cache,
        host,
        store,
        agent,
        processors,
        demotions,
        coordinator,
        gpu,
    )


def _keep_outputs(context: PodContext) -> KeptMemory:
    """The memory of steps' outputs that stay on the device."""
    kept = context.device.kept = KeptMemory(context.kept_device_bytes, context.memory_bytes)
    kept.on_failed = context.device.mark_lost
    KEPT_DEVICE_TENSOR_BYTES.set_function(lambda: kept.used_bytes)
    return kept


def _retire_lost(store: ModelStore, key: str) -> None:
    """Its next request loads it again."""
    entry = store.by_key.get(key)
    if entry is not None and entry.retire_reason is None:
        store.retire(key, "process-lost")


def _declared(watch: ClusterWatch, name: ModelName) -> ModelSpec | None:
    record = watch.state.models.get(name)
    return None if record is None else record.serving


def _storage_rules(settings: RuntimeSettings) -> TenantRules | None:
    """None for one owner: KServe brings the files of a pod with one model; a machine has one."""
    is_open = not (settings.namespaces or settings.storage_prefixes)
    if settings.model_name or (is_open and "KUBERNETES_SERVICE_HOST" not in os.environ):
        return None
    return settings.rules


def _disk_cache(settings: RuntimeSettings) -> DiskCache:
    rules = settings.rules
    options = StorageOptions(
        secret_folder=settings.storage_config,
        claim_mounts=CLAIM_MOUNTS,
        rules=_storage_rules(settings),
        secrets=NamespaceSecrets.from_environment(os.environ),
    )
    return DiskCache(
        settings.cache_path,
        Storages(options),
        Bandwidth(settings.link_rate or None),
        budget_bytes=settings.disk_bytes,
        quota_of=lambda namespace: rules.quota(namespace, Quota.CACHE),
        rules=_file_rules(settings),
    )


def _file_rules(settings: RuntimeSettings) -> FileRules:
    if settings.has_server:
        return MODEL_SERVER
    return WITH_PICKLES if settings.allow_pickle else OWN_ENGINES
