"""The lifecycle of one pod: start, serve, drain, deregister, close."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import torch
import uvloop

from common.logs import configure_logs
from common.pod_secret import PodSecret
from common.tls import PartTls
from registry.domain.pod import Accelerator, slots_at_start
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from runtime.device.accelerator import find_accelerator, mps_share
from runtime.device.memory import DeviceMemory, open_device, use_tf32
from runtime.device.worker import DeviceWorker
from runtime.engines.model_server.server_engine import ModelServer
from runtime.engines.model_server.server_memory import ServerMemory
from runtime.engines.model_server.server_process import ServerProcess
from runtime.engines.model_server.server_repository import ServerRepository
from runtime.engines.model_server.v2_client import V2Client
from runtime.errors import LoadFailed, NoDevice
from runtime.loading.load_threads import LoadThreads
from runtime.pod.composition import PodComponents, assemble
from runtime.pod.kserve_server import CLOSE_TIMEOUT_S, listen
from runtime.pod.loading_components import PodContext
from runtime.pod_process import write_termination_message
from runtime.sandbox.estimators import Estimators
from runtime.sandbox.pool import Sandbox
from runtime.sandbox.worker import fork_server
from runtime.serving.in_flight import InFlightRequests
from runtime.serving.remote_inference import RemoteInference
from runtime.settings import RuntimeSettings
from runtime.threads import RequestThreads, in_thread
from runtime.tiers.host_tier import enter_host_tier

logger = logging.getLogger(__name__)

RESTART: Final = -1
"""In place of an exit status: the process is to start anew."""
CANCEL_TIMEOUT_S = 1.0
"""Time for cancelled requests to send their error responses."""
MAX_SANDBOX_THREADS = 32
FORCED_EXIT_DELAY_S = CLOSE_TIMEOUT_S + 3.0
"""Time from the end of the drain to the forced exit of a process that hangs."""
_QUIET_LIBRARIES = (
    "httpx",
    "httpcore",
    "botocore",
    "boto3",
    "urllib3",
    "transformers",
    "kserve",
    "uvicorn",
)


def run_pod(settings: RuntimeSettings) -> int:
    """Run a pod until SIGTERM or SIGINT; returns its exit status, or RESTART."""
    sandbox = fork_server()  # before any thread, torch operation or socket
    _configure_logs(settings)
    torch.set_num_threads(settings.threads)
    server = process = None
    try:
        memory = open_device(
            settings.device,
            mps_share(os.environ),
            cuda_graphs=settings.cuda_graphs,
            registered_bytes=settings.registered_bytes,
        )
        if settings.has_server:
            server, process = _open_server(settings)
    except (NoDevice, LoadFailed) as error:
        logger.error("the pod cannot start", extra={"error": error})
        write_termination_message(str(error))
        return os.EX_CONFIG
    if settings.tf32 and memory.device.type == "cuda":
        use_tf32()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        lifecycle = _PodLifecycle(settings, sandbox, memory, server, process)
        runner.run(lifecycle.run())
    return RESTART if lifecycle.restarts else 0


def _open_server(settings: RuntimeSettings) -> tuple[ModelServer, ServerProcess | None]:
    """The pod's model server, not yet started, and the process of one that the pod starts itself.

    Raises LoadFailed if the server's repository cannot be used. Blocks.
    """
    repository = ServerRepository(settings.repository_path)
    repository.open(f"pod {settings.name}")
    process = None
    if settings.engine_command:
        log_file = Path(settings.log_file) if settings.log_file else None
        process = ServerProcess(
            settings.engine_command,
            settings.repository_path,
            log_file and log_file.with_name(f"{log_file.stem}-server.log"),
        )
    url = settings.engine_url if process is None else process.url
    metrics = settings.engine_metrics
    memory = ServerMemory(
        url,
        metrics_url=metrics if process is None else process.with_values(metrics),
        process_id=lambda: None if process is None else process.pid,
    )
    client = V2Client(url, load_timeout_s=settings.engine_load_timeout)
    server = ModelServer(client, repository, memory, load_timeout_s=settings.engine_load_timeout)
    return server, process


def _configure_logs(settings: RuntimeSettings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    line_format = f"%(asctime)s %(levelname)s {settings.name} %(name)s: %(message)s"
    configure_logs(handler, settings.log_level, line_format=line_format, libraries=_QUIET_LIBRARIES)


class _PodStopped(Exception):
    """The pod was shut down by a signal; ends the task group without an error."""


class _PodLifecycle:
    """One pod. `run` creates the resources that need the event loop."""

    def __init__(
        self,
        settings: RuntimeSettings,
        sandbox: socket.socket,
        memory: DeviceMemory,
        server: ModelServer | None,
        process: ServerProcess | None,
    ) -> None:
        self.restarts = False
        """Whether the pod ends in order to start anew."""
        self._settings = settings
        self._sandbox = sandbox
        self._listener = listen(settings.host, settings.port)
        self._stop = asyncio.Event()
        self._memory = memory
        self._server, self._process = server, process
        # A model server reads files: the host tier's images are in the form of our own engines.
        host_bytes = 0 if settings.has_server else settings.host_bytes
        self._host = enter_host_tier(settings.host_path, host_bytes)
        self._load_threads = LoadThreads()
        self._request_threads = RequestThreads(max(2, settings.threads), settings.inference_timeout)
        self._sandbox_threads = ThreadPoolExecutor(MAX_SANDBOX_THREADS, "sandbox")

    async def run(self) -> None:
        """Serve until a signal; then drain, deregister and close."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        settings = self._settings
        registry = Registry(settings.redis_url, settings.pool)
        secret, tls = PodSecret(settings.pod_secret_file), PartTls(settings.tls_dir)
        remote = RemoteInference(secret, tls)
        device = DeviceWorker(
            threads=settings.threads,
            timeout_s=settings.inference_timeout,
            check_device=self._memory.check,
        )
        device.start()
        sandbox = Sandbox(self._sandbox, on_lost=self._stop.set)
        await sandbox.start()
        estimators = None
        if settings.allow_pickle:
            estimators = Estimators(threads=settings.threads)
        try:
            async with asyncio.TaskGroup() as tasks:
                accelerator = find_accelerator(self._memory.device, os.environ)
                context = PodContext(
                    settings=settings,
                    port=self._listener.getsockname()[1],
                    registry=registry,
                    secret=secret,
                    tls=tls,
                    remote=remote,
                    sandbox=sandbox,
                    device=device,
                    memory=self._memory,
                    host=self._host,
                    load_threads=self._load_threads,
                    request_threads=self._request_threads,
                    sandbox_threads=self._sandbox_threads,
                    tasks=tasks,
                    end_pod=self._stop.set,
                    restart_pod=self._restart,
                    accelerator=accelerator,
                    server=self._server,
                    server_process=self._process,
                    estimators=estimators,
                    slots=settings.slots or await self._default_slots(registry, accelerator),
                )
                components = assemble(context)
                await components.grpc_server.start(settings.host, settings.grpc_port)
                for work in components.background:
                    tasks.create_task(work())
                serving = tasks.create_task(components.server.serve(self._listener))
                await self._stop.wait()
                self._schedule_forced_exit()
                await self._shut_down(components)
                await serving
                raise _PodStopped  # cancels the remaining tasks, loads among them
        except* _PodStopped:
            logger.info("stopped")
        finally:
            if self._server is not None:
                await in_thread(self._request_threads, self._server.close)
                self._server.client.close()
            remote.close()
            await registry.close()
            await sandbox.close()
            if estimators is not None:
                await estimators.close()
            device.close()
            self._memory.close()
            self._host.close()
            self._load_threads.shutdown(wait=False, cancel_futures=True)
            self._request_threads.shutdown(wait=False, cancel_futures=True)
            self._sandbox_threads.shutdown(wait=False, cancel_futures=True)

    def _end(self) -> None:
        self.restarts = False
        self._stop.set()

    def _restart(self) -> None:
        self.restarts = not self._stop.is_set()
        self._stop.set()

    async def _default_slots(self, registry: Registry, accelerator: Accelerator) -> int:
        """By accelerator, and by its profiles in the registry."""
        try:
            state = await registry.cluster()
        except RegistryUnavailable:  # the pod starts without it
            return slots_at_start(accelerator, ())
        return slots_at_start(
            accelerator, [each for known in state.profiles.values() for each in known.values()]
        )

    def _schedule_forced_exit(self) -> None:
        """Exit even if an inference or a download hangs, which nothing can cancel."""
        delay_s = self._settings.drain_timeout + FORCED_EXIT_DELAY_S
        timer = threading.Timer(delay_s, os._exit, (os.EX_TEMPFAIL,))
        timer.daemon = True
        timer.start()

    async def _shut_down(self, components: PodComponents) -> None:
        """Refuse new requests, complete the running ones, deregister, unload, close."""
        logger.info("draining")
        loading, in_flight = components.loading, components.in_flight
        in_flight.is_draining = True
        await loading.agent.drain()
        if not await _is_idle(in_flight, self._settings.drain_timeout):
            logger.warning(
                "requests left unfinished", extra={"after_s": self._settings.drain_timeout}
            )
            in_flight.cancel_all()
            await _is_idle(in_flight, CANCEL_TIMEOUT_S)
        await loading.agent.leave()
        for key in tuple(loading.store.by_key):
            loading.store.retire(key, "shutdown")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(components.grpc_server.stop(CLOSE_TIMEOUT_S))
            components.server.close()
        await in_thread(self._request_threads, loading.cache.close)


async def _is_idle(in_flight: InFlightRequests, timeout_s: float) -> bool:
    """Whether all requests have ended within the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            await in_flight.wait_idle()
    except TimeoutError:
        return False
    return True
