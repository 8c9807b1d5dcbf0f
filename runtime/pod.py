"""One pod: puts the parts together, runs them, and takes them down in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import uvloop

from registry.client import Registry
from registry.model import Tier
from registry.pod import PodInfo
from registry.watch import ClusterWatch
from runtime.agent import Agent, Held, Inventory
from runtime.bringing import Bringer
from runtime.declared import DeclaredModels
from runtime.device import DeviceWorker
from runtime.disk_cache import DiskCache
from runtime.ends import InferenceEnds
from runtime.follow import Follower
from runtime.frontends import Frontends
from runtime.health import Health
from runtime.link import LinkRate
from runtime.loads import Loads
from runtime.measurements import Measurements
from runtime.metrics import TIER_BYTES
from runtime.peer import PeerClient
from runtime.routes import Routes
from runtime.server import PodServer, listen
from runtime.service import PodIdentity, PredictService
from runtime.storages import Storages
from runtime.store import ModelStore

if TYPE_CHECKING:
    from runtime.settings import PodSettings

logger = logging.getLogger(__name__)

LOAD_THREADS = 8


def run_pod(settings: PodSettings) -> int:
    """Run a pod until SIGTERM or SIGINT; returns its exit status."""
    torch.set_num_threads(settings.threads)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Pod(settings).run())
    return 0


class _Pod:
    """A pod's life. Parts that need the event loop are made in `run`."""

    def __init__(self, settings: PodSettings) -> None:
        self._settings = settings
        self._listener = listen(settings.host, settings.port)
        self._stop = asyncio.Event()
        self._load_threads = ThreadPoolExecutor(LOAD_THREADS, "load")
        self._request_threads = ThreadPoolExecutor(max(2, settings.threads), "request")

    async def run(self) -> None:
        """Serve until asked to stop; then drain, deregister and close."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        settings = self._settings
        registry = Registry(settings.redis_url, settings.pool)
        peers = PeerClient()
        device = DeviceWorker(threads=settings.threads, most_waiting=settings.device_queue)
        device.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                parts = self._assemble(registry, peers=peers, device=device, tasks=tasks)
                running = [
                    tasks.create_task(work)
                    for work in (
                        parts.watch.run(),
                        parts.agent.run(),
                        parts.ends.run(),
                        parts.follower.run(),
                    )
                ]
                tasks.create_task(parts.server.serve(self._listener))
                await self._stop.wait()
                await self._shut_down(parts)
                for task in running:
                    task.cancel()
        finally:
            await peers.close()
            await registry.close()
            device.close()
            self._load_threads.shutdown(wait=False, cancel_futures=True)
            self._request_threads.shutdown(wait=False, cancel_futures=True)

    async def _shut_down(self, parts: _Parts) -> None:
        """Take no more, finish what runs, leave the registry, close."""
        logger.info("draining")
        parts.service.is_draining = True
        await parts.agent.drain()
        try:
            async with asyncio.timeout(self._settings.drain_timeout):
                await parts.service.wait_idle()
        except TimeoutError:
            logger.warning(
                "requests left unfinished", extra={"after_s": self._settings.drain_timeout}
            )
        await parts.agent.leave()
        parts.server.close()

    def _assemble(
        self,
        registry: Registry,
        *,
        peers: PeerClient,
        device: DeviceWorker,
        tasks: asyncio.TaskGroup,
    ) -> _Parts:
        settings = self._settings
        watch = ClusterWatch(registry, counts=False)
        measurements = Measurements()
        cache = DiskCache(settings.cache_path, Storages(), LinkRate(settings.link_rate or None))
        store = ModelStore(settings.memory_bytes, lambda key: agent.tell_tier(key))
        identity = self._identity()
        agent = Agent(
            registry,
            self._info(identity),
            Inventory(
                keys=lambda: cache.keys() | set(store.resident_keys()) | frontends.keys(),
                held=lambda key: _held(key, store, cache, frontends),
                is_loading=lambda key: loads.is_loading(key),
                used_bytes=lambda: _used_bytes(store, cache),
                loads_total=lambda: loads.completed_total,
            ),
            measurements=measurements,
            heartbeat_s=settings.heartbeat,
            lease_ttl_s=settings.lease_ttl,
        )
        frontends = Frontends(cache, self._load_threads, tasks, agent.tell_tier)
        bringer = Bringer(
            store, cache, frontends, device, self._load_threads, self._request_threads
        )
        loads = Loads(bringer, agent=agent, watch=watch, measurements=measurements, tasks=tasks)
        declared = DeclaredModels(watch, registry)
        ends = InferenceEnds(agent)
        service = PredictService(
            identity,
            declared=declared,
            loads=loads,
            frontends=frontends,
            peers=peers,
            ends=ends,
            measurements=measurements,
            threads=self._request_threads,
        )
        routes = Routes(settings, service, declared, loads, store, Health(agent, service))
        follower = Follower(
            watch=watch,
            store=store,
            cache=cache,
            frontends=frontends,
            loads=loads,
            agent=agent,
            threads=self._load_threads,
            retire_grace_s=settings.retire_grace,
        )
        server = PodServer(store, routes.table())
        return _Parts(watch, agent, ends, follower, service, server)

    def _identity(self) -> PodIdentity:
        host = self._settings.advertise or self._settings.host
        port = self._listener.getsockname()[1]
        return PodIdentity(self._settings.name, f"{host}:{port}", self._settings.slots)

    def _info(self, identity: PodIdentity) -> PodInfo:
        settings = self._settings
        return PodInfo(
            name=settings.name,
            address=identity.address,
            node=settings.node_name,
            slots=settings.slots,
            memory_bytes=settings.memory_bytes,
            link_bytes_per_s=settings.link_rate or None,
            process_id=os.getpid(),
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """What runs and what is taken down."""

    watch: ClusterWatch
    agent: Agent
    ends: InferenceEnds
    follower: Follower
    service: PredictService
    server: PodServer


def _held(key: str, store: ModelStore, cache: DiskCache, frontends: Frontends) -> Held:
    if store.holds(key):
        return Held(Tier.DEVICE, store.bytes_of(key))
    size_bytes = cache.bytes_on_disk(key)
    if size_bytes:
        return Held(Tier.DISK, size_bytes)
    return Held(Tier.REMOTE, cache.asset_bytes(key) if frontends.has(key) else 0)


def _used_bytes(store: ModelStore, cache: DiskCache) -> dict[str, int]:
    used = {Tier.DEVICE.value: store.used_bytes, Tier.DISK.value: cache.used_bytes()}
    TIER_BYTES.labels(tier=Tier.DISK.value).set(used[Tier.DISK.value])
    return used
