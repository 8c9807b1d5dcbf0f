"""Composition of a pod: services and servers over its loading components, and background work."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from runtime.generation.processor_sharing import ProcessorSharing
from runtime.loading.model_tiers import watch_disk
from runtime.loading.watchdog import MAX_STUCK_THREADS, Watchdog
from runtime.openai.routes import OpenAIRoutes
from runtime.pod.kserve_server import PodServer
from runtime.pod.loading_components import LoadingComponents, PodContext, compose_loading
from runtime.pod.model_sync import ModelSync
from runtime.pod.places import PlaceWatch
from runtime.pod.server_watch import ServerWatch
from runtime.profiling import Profiler, ProfileSync
from runtime.protocols.grpc_service import GrpcServer, InferenceService
from runtime.protocols.routes import Routes, profile_route
from runtime.protocols.tensor_routes import tensor_routes
from runtime.registration.measurements import Measurements
from runtime.registration.registry_agent import InferenceEndNotifier
from runtime.serving.block_exchange import BlockClient, BlockServer
from runtime.serving.generation_service import GenerationService
from runtime.serving.health import Health, SingleModel, single_model_spec
from runtime.serving.in_flight import InFlightRequests, StepQueue
from runtime.serving.predict_service import PredictService
from runtime.serving.repository import ModelCatalog, Repository
from runtime.serving.step_tensors import StepTensors
from runtime.serving.tensor_store import TensorStore


@dataclass(frozen=True, slots=True)
class PodComponents:
    """The components that the lifecycle of a pod starts and stops."""

    loading: LoadingComponents
    in_flight: InFlightRequests
    server: PodServer
    grpc_server: GrpcServer
    background: tuple[Callable[[], Coroutine[Any, Any, None]], ...]
    """Coroutine functions that run until cancelled."""


def assemble(context: PodContext) -> PodComponents:
    """All components of a pod, not yet started."""
    settings, info, loading = context.settings, context.info, compose_loading(context)
    watch, agent = loading.watch, loading.agent
    profiles = ProfileSync(context.device.times, watch=watch, agent=agent, info=info)
    watchdog = Watchdog(
        context.device,
        loading.coordinator,
        max_stuck_threads=MAX_STUCK_THREADS if info.device == "cpu" else 0,
        end_pod=context.end_pod,
    )
    end_notifier = InferenceEndNotifier(agent)
    single_model = None
    if settings.model_name:
        single_model = SingleModel(
            single_model_spec(settings.model_name, settings.model_dir),
            registry=context.registry,
            watch=watch,
            coordinator=loading.coordinator,
            store=loading.store,
        )
    catalog = ModelCatalog(watch, context.registry)
    steps = _step_tensors(context, catalog, loading.measurements)
    service = PredictService(
        info.name,
        info.address,
        in_flight=InFlightRequests(
            info.name,
            slots=info.slots,
            step_queue=StepQueue(),
            allow_simulated_work=settings.allow_simulated_work,
        ),
        catalog=catalog,
        coordinator=loading.coordinator,
        processors=loading.processors,
        remote=context.remote,
        end_notifier=end_notifier,
        measurements=loading.measurements,
        threads=context.request_threads,
        sandbox_threads=context.sandbox_threads,
        step_tensors=steps,
        server=context.server,
    )
    health = Health(agent, service.in_flight, context.device, context.request_threads, single_model)
    server, grpc_server = _servers(context, loading, catalog, service, profiles, health)
    model_sync = ModelSync(
        loading,
        context.load_threads,
        retire_grace_s=settings.retire_grace,
        placed_model=settings.placed_model,
    )
    background: list[Callable[[], Coroutine[Any, Any, None]]] = [
        watch.run,
        agent.run,
        loading.demotions.run,
        end_notifier.run,
        steps.store.run,
        model_sync.run,
        partial(watch_disk, loading.cache, agent, context.load_threads),
        watchdog.run,
        loading.gpu.run,
        profiles.run,
        context.secret.reload_periodically,
        context.tls.reload_periodically,
        PlaceWatch(watch, info, context.restart_pod).run,
    ]
    if context.host.sockets is not None:
        background.append(
            BlockServer(
                context.host.sockets,
                info.address,
                steps.store,
                context.secret,
                context.request_threads,
            ).run
        )
    if context.server is not None:
        agent.is_held = True  # until the server answers
        server_watch = ServerWatch(
            context.server, context.server_process, loading, context.load_threads
        )
        background.append(server_watch.run)
    if single_model is not None:
        background.append(single_model.run)
    return PodComponents(loading, service.in_flight, server, grpc_server, tuple(background))


def _step_tensors(
    context: PodContext, catalog: ModelCatalog, measurements: Measurements
) -> StepTensors:
    """Inputs and outputs of workflows' steps; shared with the pods of tier `host`'s folder."""
    sockets = context.host.sockets
    store = TensorStore(
        context.settings.tensor_store_bytes,
        shares_memory=sockets is not None,
        device=context.device.kept,
    )
    blocks = None
    if sockets is not None:
        blocks = BlockClient(sockets, context.secret, context.request_threads)
    return StepTensors(context.info.address, store, context.remote, catalog, blocks, measurements)


def _servers(
    context: PodContext,
    loading: LoadingComponents,
    catalog: ModelCatalog,
    service: PredictService,
    profiles: ProfileSync,
    health: Health,
) -> tuple[PodServer, GrpcServer]:
    settings, threads = context.settings, context.request_threads
    coordinator, processors = loading.coordinator, loading.processors
    repository = Repository(catalog, coordinator, loading.store, processors, service.in_flight)
    calls = InferenceService(
        service, repository, health, threads=threads, pod_name=settings.name, secret=context.secret
    )
    generations = GenerationService(
        service,
        catalog=catalog,
        measurements=loading.measurements,
        limits=context.generation_limits,
        device_time=ProcessorSharing(time.monotonic),
    )
    openai = OpenAIRoutes(
        settings.max_body_bytes, service, generations, processors, catalog, context.remote
    )
    profiler = Profiler(
        coordinator=coordinator, device=context.device, profiles=profiles, threads=threads
    )
    routes = Routes(settings, service, repository, health)
    table = [
        *routes.table(),
        *openai.table(),
        *tensor_routes(service.step_tensors.store, threads),
        profile_route(profiler, catalog),
    ]
    return PodServer(table, context.secret, context.tls), GrpcServer(
        calls.handler(),
        max_body_bytes=settings.max_body_bytes,
        slots=context.slots,
        tls=context.tls,
    )
