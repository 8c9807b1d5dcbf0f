"""A pod: its parts, in the order in which they are made and start; they end in the reverse order.

What ends when:

- SIGTERM, SIGINT, a device that hangs for good, a sandbox that is lost: the pod drains. It refuses
  new requests, completes those in flight within `drain_timeout`, answers the rest with an error,
  deregisters, unloads, and closes its servers; then the background work is cancelled.
- Another place of the plan: the same, and the process starts anew.
- SIGKILL: nothing. The lease ends after `lease_ttl`, and gateways place the pod's requests again.
- Redis lost: nothing. The pod serves on, and registers again once Redis is back.
- A drain that hangs: the process exits (`lifecycle.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from common.pod_secret import PodSecret
from common.tls import PartTls
from registry.domain.model import EngineChoice
from registry.domain.pod import PodInfo, Profile, host_port, slots_at_start
from registry.domain.tenant_rules import Quota
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.device.accelerator import GpuWatch, find_accelerator, memory_budget, pod_share
from runtime.device.memory import DeviceMemory
from runtime.device.staged_memory import StagedMemory
from runtime.device.worker import DeviceWorker
from runtime.engines.engine_processes import EngineProcesses
from runtime.engines.process_engine import ProcessEngines, adapters_of
from runtime.engines.server_engine import ModelServer
from runtime.engines.server_process import ServerProcess
from runtime.generation.limits import DEFAULT_CACHE_BYTES, GPU_CACHE_SHARE
from runtime.loading.external_model import EngineServed
from runtime.loading.load_coordinator import MAX_STUCK_THREADS, LoadCoordinator, Watchdog
from runtime.loading.model_loader import ModelLoader
from runtime.loading.model_store import ModelStore, StoreEntry
from runtime.loading.model_tiers import Demotions, tier_state, used_bytes, watch_disk
from runtime.loading.processors import Processors
from runtime.loading.weight_resolver import WeightResolver
from runtime.measurements import Measurements
from runtime.metrics import IDLE_MEMORY
from runtime.openai.routes import OpenAIRoutes
from runtime.pod.model_sync import (
    ModelParts,
    ModelSync,
    PodRules,
    ServerWatch,
    SingleModel,
    single_model_spec,
)
from runtime.pod.placement_claim import PlaceWatch
from runtime.profiling import Profiler, ProfileSync
from runtime.protocols.routes import Routes, profile_route, tensor_routes
from runtime.protocols.servers import CLOSE_TIMEOUT_S, GrpcServer, InferenceService, PodServer
from runtime.registry_agent import InferenceEndNotifier, Inventory, RegistryAgent
from runtime.sandbox.estimators import Estimators
from runtime.sandbox.sandbox_processes import Sandbox
from runtime.serving.generation_service import GenerationService
from runtime.serving.in_flight import InFlightRequests
from runtime.serving.predict_service import PredictService
from runtime.serving.remote_inference import RemoteInference
from runtime.serving.repository import Health, ModelCatalog, Repository, pick_generation
from runtime.serving.tensor_exchange import BlockClient, BlockServer, StepTensors, TensorExchange
from runtime.serving.tensor_store import TensorStore
from runtime.settings import RuntimeSettings
from runtime.storage.access import NamespaceSecrets
from runtime.storage.declared_files import MODEL_SERVER, OWN_ENGINES, WITH_PICKLES
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import StorageOptions, Storages
from runtime.threads import RequestThreads, in_thread
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.eviction import ReloadCosts, greedy_dual, tier_after_eviction
from runtime.tiers.host_tier import enter_host_tier

logger = logging.getLogger(__name__)

CANCEL_TIMEOUT_S: Final = 1.0
"""Time for cancelled requests to send their error responses."""
MAX_ENGINE_CALLS: Final = 1024
"""Of gRPC at once, where slots follow engines."""
MAX_SANDBOX_THREADS: Final = 32
LOAD_THREADS: Final = 32
"""Of loads, which `LoadTurns` and `TierPreloads` bound; one from storage occupies two."""


class _Stopped(Exception):
    """The pod was told to end; ends the task group without an error."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What is opened before the event loop: some of it may start no thread, some may fail."""

    settings: RuntimeSettings
    sandbox: socket.socket
    """Of the process that forks the sandbox's workers."""
    listener: socket.socket
    memory: DeviceMemory
    server: ModelServer | None
    """What runs the pod's models in its place."""
    server_process: ServerProcess | None
    """Of a server that the pod starts itself."""


class Pod:
    def __init__(self, opened: Opened, on_drain: Callable[[], None]) -> None:
        """`on_drain` is called when the pod begins to end."""
        self.restarts = False
        """Whether the pod ends in order to start anew."""
        self._opened, self._settings = opened, opened.settings
        self._on_drain = on_drain
        self._stop = asyncio.Event()

    def end(self) -> None:
        self.restarts = False
        self._stop.set()

    def restart(self) -> None:
        self.restarts = not self._stop.is_set()
        self._stop.set()

    async def run(self) -> None:
        """Serve until `end` or `restart`."""
        async with AsyncExitStack() as ends:
            await self._open_resources(ends)
            try:
                async with asyncio.TaskGroup() as self._tasks:
                    await self._describe()
                    self._hold_models()
                    self._serve_requests()
                    self._open_servers()
                    await self.grpc_server.start(self._settings.host, self._settings.grpc_port)
                    for work in self._background():
                        self._tasks.create_task(work())
                    serving = self._tasks.create_task(self.server.serve(self._opened.listener))
                    await self._stop.wait()
                    self._on_drain()
                    await self._drain()
                    await serving
                    raise _Stopped  # cancels the remaining tasks, loads among them
            except* _Stopped:
                logger.info("stopped")

    # 1. Resources: each line that opens one says how it ends

    async def _open_resources(self, ends: AsyncExitStack) -> None:
        settings, opened = self._settings, self._opened
        self.load_threads = ThreadPoolExecutor(LOAD_THREADS, "load")
        self.request_threads = RequestThreads(max(2, settings.threads), settings.inference_timeout)
        self.sandbox_threads = ThreadPoolExecutor(MAX_SANDBOX_THREADS, "sandbox")
        for threads in (self.load_threads, self.request_threads, self.sandbox_threads):
            ends.callback(threads.shutdown, wait=False, cancel_futures=True)
        # A model server reads files: the host tier's images are in the form of our own engines.
        host_bytes = 0 if settings.has_server else settings.host_bytes
        self.host = enter_host_tier(settings.host_path, host_bytes)
        ends.callback(self.host.close)
        ends.callback(opened.memory.close)
        self.device = DeviceWorker(
            threads=settings.threads,
            timeout_s=settings.inference_timeout,
            check_device=opened.memory.check,
        )
        self.device.start()
        ends.callback(self.device.close)
        self.estimators = Estimators(threads=settings.threads, takes_pickles=settings.allow_pickle)
        ends.push_async_callback(self.estimators.close)
        self.sandbox = Sandbox(opened.sandbox, on_lost=self._stop.set)
        ends.push_async_callback(self.sandbox.close)
        await self.sandbox.start()
        self.registry = Registry(settings.redis_url, settings.pool)
        ends.push_async_callback(self.registry.close)
        self.secret, self.tls = PodSecret(settings.pod_secret_file), PartTls(settings.tls_dir)
        self.remote = RemoteInference(self.secret, self.tls)
        ends.callback(self.remote.close)
        self.measurements, sockets = Measurements(), self.host.sockets
        blocks = BlockClient(sockets, self.secret, self.request_threads) if sockets else None
        self.other_pods_tensors = TensorExchange(self.secret, self.tls, blocks, self.measurements)
        ends.callback(self.other_pods_tensors.close)
        if opened.server is not None:
            ends.callback(opened.server.client.close)
            ends.push_async_callback(in_thread, self.request_threads, opened.server.close)

    # 2. What the pod is, for the registry

    async def _describe(self) -> None:
        settings, environment = self._settings, os.environ
        accelerator = find_accelerator(self._opened.memory.device, environment)
        port = settings.advertise_port or self._opened.listener.getsockname()[1]
        sockets = self.host.sockets
        self.info = PodInfo(
            name=settings.name,
            address=host_port(settings.advertise or settings.host, port),
            node=settings.node_name,
            device=str(self._opened.memory.device),
            slots=settings.slots or slots_at_start(accelerator, await self._known_profiles()),
            memory_bytes=memory_budget(settings.memory_bytes, accelerator, environment),
            link_bytes_per_s=settings.link_rate or None,
            process_id=os.getpid(),
            uid=settings.pod_uid,
            accelerator=accelerator,
            share=pod_share(accelerator, environment, settings.share if settings.cores else 0.0),
            placed_model=settings.placed_model,
            place=settings.place,
            takes_places=settings.takes_places,
            max_share=settings.max_share / 100 if settings.max_share else 1.0,
            has_server=settings.has_server,
            shared_memory="" if sockets is None else sockets.identity,
        )
        self._own_slots = self.info.slots

    async def _known_profiles(self) -> list[Profile]:
        """Of all accelerators; none where the registry is away: the pod starts without it."""
        with suppress(RegistryUnavailable):
            known = (await self.registry.cluster()).profiles
            return [each for by_product in known.values() for each in by_product.values()]
        return []

    # 3. Its models: where they lie, who loads and removes them, what the registry hears of it

    def _hold_models(self) -> None:
        settings, host, device, threads = self._settings, self.host, self.device, self.load_threads
        info, memory, server = self.info, self._opened.memory, self._opened.server
        watch, limits = ClusterWatch(self.registry, counts=False), settings.generation_limits
        # Without tenants all is one owner's: a machine without rules, or the only model, by KServe.
        is_shared = "KUBERNETES_SERVICE_HOST" in os.environ and not settings.model_name
        rules = PodRules(watch.state, has_tenants=settings.has_tenants or is_shared)
        own_files = WITH_PICKLES if settings.allow_pickle else OWN_ENGINES
        costs = ReloadCosts()
        cache = DiskCache(
            settings.cache_path,
            Storages(
                StorageOptions(
                    secret_folder=settings.storage_config,
                    rules=rules,
                    secrets=NamespaceSecrets.from_environment(os.environ),
                )
            ),
            Bandwidth(settings.link_rate or None),
            budget_bytes=settings.disk_bytes,
            quota_of=partial(rules.quota, kind=Quota.CACHE),
            rules=own_files if server is None else MODEL_SERVER,
        )
        engines = self._open_engines()

        def on_added(entry: StoreEntry) -> None:
            # On a CPU the files' pages are the model's memory.
            if isinstance(memory, StagedMemory) and not isinstance(entry.model, EngineServed):
                demotions.offer(entry.model.spec)

        def on_removed(entry: StoreEntry, _reason: str, evicted_for: str | None) -> None:
            agent.report_tier(entry.key)
            if evicted_for is not None and not isinstance(entry.model, EngineServed):
                demotions.offer(entry.model.spec)

        def reload_s(key: str, size_bytes: int) -> float:
            is_on_disk = cache.bytes_on_disk(key) > 0
            if engines is not None and key in engines.processes.by_key:
                tier = engines.tier_after_eviction(key, is_on_disk=is_on_disk)
            else:
                tier = tier_after_eviction(
                    size_bytes,
                    host_bytes=host.bytes_of(key),
                    host_budget_bytes=host.budget_bytes,
                    is_on_disk=is_on_disk,
                )
            return costs.estimate_s(key, tier, size_bytes)

        def on_lost(key: str) -> None:
            store.retire(key, "process-lost")  # its next request loads it again

        store = ModelStore(
            info.memory_bytes,
            policy=greedy_dual,
            reload_s=reload_s,
            now_s=time.monotonic,
            on_removed=on_removed,
            quota_of=partial(rules.quota, kind=Quota.MEMORY),
            remainders=engines,
        )
        store.on_added = on_added
        IDLE_MEMORY.set_function(lambda: store.idle_byte_s)
        self.gpu = GpuWatch(info.accelerator, device.mark_lost, interval_s=settings.heartbeat_s)
        agent = RegistryAgent(
            self.registry,
            info,
            Inventory(
                keys=lambda: cache.keys() | host.keys() | store.by_key.keys() | processors.keys(),
                tier_state=lambda key: tier_state(key, store, host, cache, processors),
                is_loading=lambda key: coordinator.is_loading(key),
                used_bytes=lambda: used_bytes(store, host, cache, agent, engines),
                loads_total=lambda: coordinator.loads.completed_total,
                idle_byte_s=lambda: store.idle_byte_s,
                copies=lambda: store.copy_reports(),
                gpu=lambda: self.gpu.reading,
                pods=lambda: watch.state.pods,
            ),
            measurements=self.measurements,
            heartbeat_s=settings.heartbeat_s,
            lease_ttl_s=settings.lease_ttl,
        )
        agent.is_held = server is not None  # until the server answers
        if isinstance(memory, StagedMemory):
            host.on_no_room, host.on_wanted = memory.images.drop_one, memory.images.drop_later
        if engines is not None:
            engines.processes.on_moved = agent.report_tier
            engines.has_adapters = lambda spec: spec.name in watch.state.bases.values()
            engines.processes.on_lost = on_lost
            if not settings.slots:
                engines.processes.on_slots = self._follow_engines
        estimators = self.estimators
        estimators.on_lost = on_lost
        processors = Processors(
            cache,
            threads,
            self._tasks,
            agent.report_tier,
            sandbox=self.sandbox,
            declared=lambda name: pick_generation(watch.state.models.get(name), None),
            server=server,
            engines=engines,
        )
        resolver = WeightResolver(
            store, cache, host, processors, threads, limits, memory, server, estimators, engines
        )
        demotions = Demotions(resolver, agent.report_tier)
        coordinator = LoadCoordinator(
            ModelLoader(resolver, device),
            agent=agent,
            watch=watch,
            measurements=self.measurements,
            costs=costs,
            tasks=self._tasks,
        )
        self.models = ModelParts(
            watch,
            rules,
            costs,
            cache,
            host,
            store,
            agent,
            processors,
            demotions,
            coordinator,
            engines,
        )
        self.catalog = ModelCatalog(watch, self.registry)
        self.single_model = None
        if settings.model_name:
            spec = single_model_spec(settings.model_name, settings.model_dir)
            self.single_model = SingleModel(spec, self.registry, watch, coordinator, store)
        self.profiles = ProfileSync(device.times, watch=watch, agent=agent, info=self.info)

    def _open_engines(self) -> ProcessEngines | None:
        settings, memory = self._settings, self._opened.memory
        if not settings.has_engines:
            return None
        adapters = adapters_of(settings.engine_python, settings.llama_server)
        is_gpu = isinstance(memory, StagedMemory)
        share_bytes = int(self.info.memory_bytes * GPU_CACHE_SHARE)
        default_bytes = share_bytes if is_gpu else DEFAULT_CACHE_BYTES
        processes = EngineProcesses(
            adapters,
            cache=settings.cache_path / ".engines",
            log_file=Path(settings.log_file) if settings.log_file else None,
            start_timeout_s=settings.engine_load_timeout,
            hang_s=settings.inference_timeout,
            tasks=self._tasks,
            free_bytes=memory.free_bytes if isinstance(memory, StagedMemory) else None,
        )
        return ProcessEngines(
            processes,
            adapters,
            EngineChoice(settings.engine),
            cache_bytes=settings.generation_cache_bytes or default_bytes,
            budget_bytes=self.info.memory_bytes,
            device_bytes=self.info.accelerator.memory_bytes if is_gpu else 0,
            host_bytes=lambda: settings.host_bytes - self.host.used_bytes(),
            threads=settings.threads,
        )

    def _follow_engines(self, slots: int) -> None:
        """The pod's slots: what its engines hold, and those for all else, such as cold models."""
        self.in_flight.slots = slots + self._own_slots
        self.models.agent.offer_slots(self.in_flight.slots)

    # 4. Its requests

    def _serve_requests(self) -> None:
        settings, models, info = self._settings, self.models, self.info
        self.in_flight = InFlightRequests(
            info.name, slots=info.slots, allow_simulated_work=settings.allow_simulated_work
        )
        self.kept_tensors = TensorStore(settings.tensor_store_bytes, shares_memory=self.host.is_on)
        self.ended_inferences = InferenceEndNotifier(models.agent)
        self.predictions = PredictService(
            info.name,
            info.address,
            in_flight=self.in_flight,
            catalog=self.catalog,
            coordinator=models.coordinator,
            processors=models.processors,
            remote=self.remote,
            end_notifier=self.ended_inferences,
            measurements=self.measurements,
            threads=self.request_threads,
            sandbox_threads=self.sandbox_threads,
            step_tensors=StepTensors(
                info.address, self.kept_tensors, self.other_pods_tensors, self.catalog
            ),
            server=self._opened.server,
        )
        self.generations = GenerationService(self.predictions, settings.generation_limits)

    # 5. Its servers, HTTP and gRPC

    def _open_servers(self) -> None:
        settings, models, service = self._settings, self.models, self.predictions
        repository = Repository(
            self.catalog, models.coordinator, models.store, models.processors, self.in_flight
        )
        has_model = self.single_model.is_loaded if self.single_model else lambda: True
        health = Health(models.agent, self.in_flight, self.device, self.request_threads, has_model)
        profiler = Profiler(models.coordinator, self.device, self.profiles, self.request_threads)
        limit = settings.max_body_bytes
        routes = [
            *Routes(service, repository, health, limit).table(),
            *OpenAIRoutes(service, self.generations, limit).table(),
            *tensor_routes(self.kept_tensors, self.request_threads),
            profile_route(profiler, self.catalog),
        ]
        self.server = PodServer(routes, self.secret, self.tls)
        max_calls = MAX_ENGINE_CALLS if settings.has_engines else self.info.slots
        calls = InferenceService(service, repository, health, self.secret)
        self.grpc_server = GrpcServer(
            calls.handler(), max_body_bytes=limit, slots=max_calls, tls=self.tls
        )

    # 6. What runs beside the requests, each until it is cancelled

    def _background(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        settings, models, opened = self._settings, self.models, self._opened
        model_sync = ModelSync(
            models,
            self.load_threads,
            retire_grace_s=settings.retire_grace,
            placed_model=settings.placed_model,
        )
        watchdog = Watchdog(
            self.device,
            models.coordinator,
            max_stuck_threads=MAX_STUCK_THREADS if self.info.device == "cpu" else 0,
            end_pod=self._stop.set,
        )
        work: list[Callable[[], Coroutine[Any, Any, None]]] = [
            models.watch.run,
            self._register,
            models.demotions.run,
            self.ended_inferences.run,
            self.kept_tensors.run,
            model_sync.run,
            partial(watch_disk, models.cache, models.agent, self.load_threads),
            watchdog.run,
            self.gpu.run,
            self.profiles.run,
            self.secret.reload_periodically,
            self.tls.reload_periodically,
            PlaceWatch(models.watch, self.info, self.restart).run,
        ]
        if (sockets := self.host.sockets) is not None:
            address, threads = self.info.address, self.request_threads
            blocks = BlockServer(sockets, address, self.kept_tensors, self.secret, threads)
            work.append(blocks.run)
        if opened.server is not None:
            process = opened.server_process
            work.append(ServerWatch(opened.server, process, models, self.load_threads).run)
        if self.single_model is not None:
            work.append(self.single_model.run)
        if models.engines is not None:
            work.append(models.engines.processes.run)
        return work

    async def _register(self) -> None:
        """Offer the pod once its copy is complete: it refuses loads until it has seen the rules."""
        await self.models.watch.wait_synced()
        await self.models.agent.run()

    # 7. Its end

    async def _drain(self) -> None:
        """Refuse new requests, complete the running ones, deregister, unload, close."""
        logger.info("draining")
        models, in_flight, limit_s = self.models, self.in_flight, self._settings.drain_timeout
        in_flight.is_draining = True
        await models.agent.drain()
        if not await in_flight.is_idle_within(limit_s):
            logger.warning("requests left unfinished", extra={"after_s": limit_s})
            in_flight.cancel_all()
            await in_flight.is_idle_within(CANCEL_TIMEOUT_S)
        await models.agent.leave()
        for key in tuple(models.store.by_key):
            models.store.retire(key, "shutdown")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.grpc_server.stop(CLOSE_TIMEOUT_S))
            self.server.close()
        await in_thread(self.request_threads, models.cache.close)
