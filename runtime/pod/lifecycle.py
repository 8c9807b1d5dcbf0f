"""The life of one pod: its parts run, and are taken down in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
import uvloop

from registry.redis.client import Registry
from runtime.device.memory import open_device
from runtime.device.worker import DeviceWorker
from runtime.loading.load_threads import LoadThreads
from runtime.pod.composition import PodContext, assemble
from runtime.protocols.server import CLOSE_TIMEOUT_S, listen
from runtime.serving.remote_inference import RemoteInference
from runtime.threads import in_thread
from runtime.tiers.disk_watch import watch_disk
from runtime.tiers.host_tier import enter_host_tier

if TYPE_CHECKING:
    from runtime.pod.composition import PodComponents
    from runtime.serving.predict_service import PredictService
    from runtime.settings import RuntimeSettings

logger = logging.getLogger(__name__)

ABANDON_S = 1.0
"""How long abandoned requests may take to say so to their clients."""
LAST_S = CLOSE_TIMEOUT_S + 3.0
"""From the end of the drain to the end of the process, whatever hangs in it."""


def run_pod(settings: RuntimeSettings) -> int:
    """Run a pod until SIGTERM or SIGINT; returns its exit status."""
    torch.set_num_threads(settings.threads)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_PodLife(settings).run())
    return 0


class _PodStopped(Exception):
    """The pod was asked to stop and did."""


class _PodLife:
    """A pod's life. Parts that need the event loop are made in `run`."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._listener = listen(settings.host, settings.port)
        self._stop = asyncio.Event()
        self._memory = open_device(settings.device)
        self._host = enter_host_tier(settings.host_path, settings.host_bytes)
        self._load_threads = LoadThreads()
        self._request_threads = ThreadPoolExecutor(max(2, settings.threads), "request")

    async def run(self) -> None:
        """Serve until asked to stop; then drain, deregister and close."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        settings = self._settings
        registry = Registry(settings.redis_url, settings.pool)
        remote = RemoteInference()
        device = DeviceWorker(
            threads=settings.threads,
            max_queued=settings.device_queue,
            timeout_s=settings.inference_timeout,
        )
        device.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                ground = PodContext(
                    settings,
                    self._listener.getsockname()[1],
                    registry,
                    remote,
                    device,
                    self._memory,
                    self._host,
                    self._load_threads,
                    self._request_threads,
                    tasks,
                    self._stop.set,
                )
                parts = assemble(ground)
                await parts.grpc_server.start(settings.host, settings.grpc_port)
                for work in (
                    parts.watch.run(),
                    parts.agent.run(),
                    parts.demotions.run(),
                    parts.end_notifier.run(),
                    parts.follower.run(),
                    watch_disk(parts.cache, parts.agent, self._load_threads),
                    parts.hangs.run(),
                    parts.profiles.run(),
                ):
                    tasks.create_task(work)
                if parts.single_model is not None:
                    tasks.create_task(parts.single_model.run())
                serving = tasks.create_task(parts.server.serve(self._listener))
                await self._stop.wait()
                self._end_at_last()
                await self._shut_down(parts)
                await serving
                raise _PodStopped  # cancels what is left, loads among it
        except* _PodStopped:
            logger.info("stopped")
        finally:
            await remote.close()
            await registry.close()
            device.close()
            self._memory.close()
            self._host.close()
            self._load_threads.shutdown(wait=False, cancel_futures=True)
            self._request_threads.shutdown(wait=False, cancel_futures=True)

    def _end_at_last(self) -> None:
        """End the process also if a forward or a download hangs, which nothing can cancel."""
        last = threading.Timer(self._settings.drain_timeout + LAST_S, os._exit, (os.EX_TEMPFAIL,))
        last.daemon = True
        last.start()

    async def _shut_down(self, parts: PodComponents) -> None:
        """Take no more, finish what runs, leave the registry, unload, close."""
        logger.info("draining")
        parts.service.in_flight.is_draining = True
        await parts.agent.drain()
        if not await _is_idle(parts.service, self._settings.drain_timeout):
            logger.warning(
                "requests left unfinished", extra={"after_s": self._settings.drain_timeout}
            )
            parts.service.in_flight.cancel_all()
            await _is_idle(parts.service, ABANDON_S)
        await parts.agent.leave()
        for key in parts.store.model_keys():
            await parts.store.retire(key, "shutdown")
        parts.server.close()
        await parts.grpc_server.stop(CLOSE_TIMEOUT_S)
        await in_thread(self._request_threads, parts.cache.close)


async def _is_idle(service: PredictService, patience_s: float) -> bool:
    """Whether all requests are answered, now or within `patience_s`."""
    try:
        async with asyncio.timeout(patience_s):
            await service.in_flight.wait_idle()
    except TimeoutError:
        return False
    return True
