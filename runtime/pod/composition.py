"""A pod's parts, put together: what loads, what serves, what keeps an eye on both."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from registry.domain.pod import PodInfo, host_port
from registry.redis.watch import ClusterWatch
from runtime.engines.networks.skeletons import Skeletons
from runtime.generation.processor_sharing import ProcessorSharing
from runtime.loading.load_coordinator import LoadCoordinator
from runtime.loading.model_loader import ModelLoader
from runtime.loading.model_store import Eviction, ModelStore
from runtime.loading.orphaned_loads import OrphanedLoadParams
from runtime.loading.processors import Processors
from runtime.loading.reload_costs import ReloadCosts
from runtime.loading.tier_state import held, tier_after, used_bytes
from runtime.loading.watchdog import Watchdog
from runtime.loading.weight_resolver import WeightResolver
from runtime.metrics import IDLE_MEMORY
from runtime.openai.routes import OpenAIRoutes
from runtime.pod.model_sync import ModelSync
from runtime.profiling.profile_sync import ProfileSync
from runtime.profiling.profiler import Profiler
from runtime.protocols.grpc_server import GrpcServer
from runtime.protocols.grpc_service import InferenceService
from runtime.protocols.profile_route import profile_route
from runtime.protocols.routes import Routes
from runtime.protocols.server import PodServer
from runtime.registration.inference_end_notifier import InferenceEndNotifier
from runtime.registration.measurements import Measurements
from runtime.registration.model_catalog import ModelCatalog
from runtime.registration.registry_agent import Inventory, RegistryAgent
from runtime.serving.generation_service import GenerationService
from runtime.serving.health import Health
from runtime.serving.in_flight import InFlightRequests
from runtime.serving.predict_service import PredictService
from runtime.serving.repository import Repository
from runtime.serving.single_model import SingleModel, single_model_spec
from runtime.storage.bandwidth import Bandwidth
from runtime.storage.load_ticket import LoadTicket
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.demotion import Demotions
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.eviction import POLICIES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Executor

    from registry.redis.client import Registry
    from runtime.device.memory import DeviceMemory
    from runtime.device.worker import DeviceWorker
    from runtime.loading.load_threads import LoadThreads
    from runtime.serving.remote_inference import RemoteInference
    from runtime.settings import RuntimeSettings
    from runtime.tiers.host_tier import HostTier


@dataclass(frozen=True, slots=True)
class PodContext:
    """What the parts stand on; made, and taken down, by the pod itself."""

    settings: RuntimeSettings
    port: int
    registry: Registry
    remote: RemoteInference
    device: DeviceWorker
    memory: DeviceMemory
    host: HostTier
    load_threads: LoadThreads
    request_threads: Executor
    tasks: asyncio.TaskGroup
    end_pod: Callable[[], None]

    @property
    def info(self) -> PodInfo:
        """What the registry is told of the pod."""
        settings = self.settings
        return PodInfo(
            name=settings.name,
            address=host_port(
                settings.advertise or settings.host, settings.advertise_port or self.port
            ),
            node=settings.node_name,
            device=str(self.memory.device),
            slots=settings.slots,
            memory_bytes=settings.memory_bytes,
            link_bytes_per_s=settings.link_rate or None,
            process_id=os.getpid(),
        )


@dataclass(frozen=True, slots=True)
class PodComponents:
    """What runs and what is taken down."""

    watch: ClusterWatch
    agent: RegistryAgent
    demotions: Demotions
    end_notifier: InferenceEndNotifier
    follower: ModelSync
    hangs: Watchdog
    profiles: ProfileSync
    cache: DiskCache
    service: PredictService
    store: ModelStore
    server: PodServer
    grpc_server: GrpcServer
    single_model: SingleModel | None


@dataclass(frozen=True, slots=True)
class _Loading:
    """What knows and moves models."""

    watch: ClusterWatch
    measurements: Measurements
    costs: ReloadCosts
    cache: DiskCache
    store: ModelStore
    agent: RegistryAgent
    processors: Processors
    demotions: Demotions
    coordinator: LoadCoordinator
    catalog: ModelCatalog


def assemble(ground: PodContext) -> PodComponents:
    """All parts of a pod; none runs yet."""
    settings, loading = ground.settings, _loading(ground)
    kind = ground.info.device
    profiles = ProfileSync(
        ground.device.times,
        watch=loading.watch,
        agent=loading.agent,
        device=kind,
        interval_s=settings.profile_interval,
    )
    hangs = Watchdog(
        ground.device,
        loading.coordinator,
        most_stuck=settings.most_stuck_threads if kind == "cpu" else 0,
        end_pod=ground.end_pod,
    )
    end_notifier = InferenceEndNotifier(loading.agent)
    service = _service(ground, loading, end_notifier)
    single_model = _single_model(ground, loading)
    health = Health(loading.agent, service.in_flight, ground.device, single_model)
    server, grpc_server = _servers(ground, loading, service, profiles, health)
    return PodComponents(
        watch=loading.watch,
        agent=loading.agent,
        demotions=loading.demotions,
        end_notifier=end_notifier,
        follower=_follower(ground, loading),
        hangs=hangs,
        profiles=profiles,
        cache=loading.cache,
        service=service,
        store=loading.store,
        server=server,
        grpc_server=grpc_server,
        single_model=single_model,
    )


def _single_model(ground: PodContext, loading: _Loading) -> SingleModel | None:
    settings = ground.settings
    if not settings.model_name:
        return None
    return SingleModel(
        single_model_spec(settings.model_name, settings.model_dir),
        registry=ground.registry,
        watch=loading.watch,
        coordinator=loading.coordinator,
        store=loading.store,
    )


def _loading(ground: PodContext) -> _Loading:
    settings, host = ground.settings, ground.host
    watch = ClusterWatch(ground.registry, counts=False)
    measurements, costs = Measurements(), ReloadCosts()
    cache = _disk_cache(settings)

    def on_evicted(eviction: Eviction) -> None:
        agent.report_tier(eviction.spec.key)
        if eviction.is_for_room:
            demotions.offer(eviction.spec)

    def reload_s(key: str, size_bytes: int) -> float:
        return costs.estimate_s(key, tier_after(host, cache, key, size_bytes), size_bytes)

    store = ModelStore(
        settings.memory_bytes, on_evicted, policy=POLICIES[settings.eviction], reload_s=reload_s
    )
    IDLE_MEMORY.set_function(lambda: store.idle_byte_s)
    agent = RegistryAgent(
        ground.registry,
        ground.info,
        Inventory(
            keys=lambda: cache.keys() | host.keys() | set(store.model_keys()) | processors.keys(),
            held=lambda key: held(key, store, host, cache, processors),
            is_loading=lambda key: coordinator.is_loading(key),
            used_bytes=lambda: used_bytes(store, host, cache, agent),
            loads_total=lambda: coordinator.completed_total,
            idle_byte_s=lambda: store.idle_byte_s,
        ),
        measurements=measurements,
        heartbeat_s=settings.heartbeat,
        lease_ttl_s=settings.lease_ttl,
    )
    processors = Processors(cache, ground.load_threads, ground.tasks, agent.report_tier)
    background = ground.load_threads.of(LoadTicket(is_urgent=False))
    demotions = Demotions(host, cache, background, agent.report_tier)
    resolver = WeightResolver(
        store, cache, host, processors, ground.load_threads, settings.generation_limits
    )
    loader = ModelLoader(
        store, resolver, ground.memory, Skeletons(), ground.device, ground.request_threads
    )
    coordinator = LoadCoordinator(
        loader,
        agent=agent,
        watch=watch,
        measurements=measurements,
        costs=costs,
        tasks=ground.tasks,
        abandoned=OrphanedLoadParams(settings.end_abandoned_downloads),
    )
    catalog = ModelCatalog(watch, ground.registry)
    return _Loading(
        watch, measurements, costs, cache, store, agent, processors, demotions, coordinator, catalog
    )


def _disk_cache(settings: RuntimeSettings) -> DiskCache:
    options = StorageOptions(
        secret_folder=settings.storage_config, claim_mounts=Path(settings.pvc_dir)
    )
    return DiskCache(
        settings.cache_path,
        Storages(options),
        Bandwidth(settings.link_rate or None),
        budget_bytes=settings.disk_bytes,
    )


def _service(
    ground: PodContext, loading: _Loading, end_notifier: InferenceEndNotifier
) -> PredictService:
    info = ground.info
    return PredictService(
        info.name,
        info.address,
        in_flight=InFlightRequests(
            info.name, slots=info.slots, allow_simulated_work=ground.settings.allow_simulated_work
        ),
        catalog=loading.catalog,
        coordinator=loading.coordinator,
        processors=loading.processors,
        remote=ground.remote,
        end_notifier=end_notifier,
        measurements=loading.measurements,
        threads=ground.request_threads,
    )


def _servers(
    ground: PodContext,
    loading: _Loading,
    service: PredictService,
    profiles: ProfileSync,
    health: Health,
) -> tuple[PodServer, GrpcServer]:
    """Every protocol that the pod speaks, over the same service."""
    settings, catalog, coordinator = ground.settings, loading.catalog, loading.coordinator
    repository = Repository(
        catalog, coordinator, loading.store, loading.processors, service.in_flight
    )
    calls = InferenceService(
        service,
        repository,
        health,
        threads=ground.request_threads,
        pod_name=settings.name,
    )
    generations = GenerationService(
        service,
        catalog=catalog,
        measurements=loading.measurements,
        threads=ground.request_threads,
        limits=settings.generation_limits,
        device_time=ProcessorSharing(time.monotonic),
    )
    openai = OpenAIRoutes(
        settings, service, generations, loading.processors, catalog, ground.remote
    )
    profiler = Profiler(
        coordinator=coordinator,
        device=ground.device,
        profiles=profiles,
        threads=ground.request_threads,
    )
    routes = Routes(settings, service, repository, health)
    table = [*openai.table(), *routes.table(), profile_route(profiler, catalog)]
    return PodServer(loading.store, table), GrpcServer(
        calls.handler(), max_body_bytes=settings.max_body_bytes, slots=settings.slots
    )


def _follower(ground: PodContext, loading: _Loading) -> ModelSync:
    return ModelSync(
        watch=loading.watch,
        store=loading.store,
        cache=loading.cache,
        host=ground.host,
        costs=loading.costs,
        processors=loading.processors,
        coordinator=loading.coordinator,
        agent=loading.agent,
        threads=ground.load_threads,
        retire_grace_s=ground.settings.retire_grace,
    )
