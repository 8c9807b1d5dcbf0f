"""The platform on one machine, as one object: starts every part, supervises, stops in order.

    async with Platform(settings) as platform:
        ... platform.gateway_url ...

Redis, object store and gateway are services of their own; the pods are the zygote's. Nothing is
decided here about requests: gateway and pods do that among themselves through the registry.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import httpx

from pilotlight.errors import StartFailed
from pilotlight.platform.object_store import object_store_command
from pilotlight.platform.pod_processes import PodProcesses, PodSpawn
from pilotlight.platform.pod_scaling import PodScaling
from pilotlight.platform.processes import free_port, port_is_free, python_module
from pilotlight.platform.redis_server import is_answering, redis_command
from pilotlight.platform.service import Service, ServiceSpec
from pilotlight.state_dir import HomeLock, PlatformState
from registry.domain.pod import PodPhase
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from pilotlight.platform.settings import AutoscalerChoice, LocalPodSettings, PlatformSettings

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_START_S = 180.0
"""One that ends is told of at once; a cold disk or a busy machine may need a minute for torch."""
_PORT_PATIENCE_S = 2.0
"""A platform that was just killed may hold the gateway's port for a moment."""


@dataclass(frozen=True, slots=True)
class StartProgress:
    """How far the platform is with starting or stopping."""

    done: int
    total: int
    text: str


class Platform:
    """A running platform between `__aenter__` and `__aexit__`."""

    def __init__(
        self, settings: PlatformSettings, on_progress: Callable[[StartProgress], None] | None = None
    ) -> None:
        self.settings = settings
        self.redis_url = settings.redis_url or ""
        self.gateway_url = ""
        self.s3_endpoint: str | None = None
        self.autoscaler_metrics: str | None = None
        self._on_progress = on_progress or (lambda _: None)
        self._lock = HomeLock(settings.home)
        self._group = asyncio.TaskGroup()
        self._services: list[Service] = []
        self._fleet: PodProcesses | None = None
        self._registry: Registry | None = None
        self._watch: ClusterWatch | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._scaling_task: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Event] = []
        self._steps_done = 0

    # What others ask

    @property
    def registry(self) -> Registry:
        """The platform's registry client."""
        if self._registry is None:
            raise StartFailed("the platform is not started")
        return self._registry

    @property
    def watch(self) -> ClusterWatch:
        """The platform's copy of the cluster."""
        if self._watch is None:
            raise StartFailed("the platform is not started")
        return self._watch

    @property
    def process_ids(self) -> dict[str, int]:
        """Process id of every part that runs, pods by their names."""
        services = {
            service.spec.name: service.child.pid
            for service in self._services
            if service.child is not None and service.child.returncode is None
        }
        return services | (self._fleet.process_ids if self._fleet else {})

    @property
    def state(self) -> PlatformState:
        """What `platform.json` says once the platform is ready."""
        return PlatformState(
            pid=os.getpid(),
            phase="ready",
            gateway=self.gateway_url,
            redis_url=self.redis_url,
            pool=self.settings.pool,
            s3_endpoint=self.s3_endpoint,
            autoscaler_metrics=self.autoscaler_metrics,
            pods=tuple(self._pod_names()),
        )

    async def until(self, condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
        """Return once `condition` holds for the copy of the cluster; raises StartFailed."""
        changed = asyncio.Event()
        self._waiting.append(changed)
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise StartFailed(f"{what}: not so within {timeout_s:g} s") from None
        finally:
            self._waiting.remove(changed)

    def _cluster_changed(self) -> None:
        for changed in self._waiting:
            changed.set()

    # Start

    async def __aenter__(self) -> Self:
        self._lock.__enter__()
        try:
            await self._group.__aenter__()
            try:
                await self._start()
            except BaseException:
                await self._stop()
                await self._group.__aexit__(None, None, None)
                raise
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self

    async def _start(self) -> None:
        settings = self.settings
        host, port = settings.host, settings.port or free_port(settings.host)
        await self._wait_for_port(host, port)
        self.gateway_url = f"http://{_LOOPBACK if host in {'0.0.0.0', '::'} else host}:{port}"
        settings.home.clear_nodes()
        settings.home.logs.mkdir(parents=True, exist_ok=True)
        self._say("starting")
        if settings.s3:
            self.s3_endpoint = f"http://{_LOOPBACK}:{free_port()}"
        self._start_fleet()  # first, as its imports take longest; it meets Redis only with a pod
        if settings.redis_url is None:
            await self._start_redis()
        if self.s3_endpoint is not None:
            await self._start_object_store(self.s3_endpoint)
        await self._connect()
        gateway = self._start_gateway(host, port)
        await self._fork_pods()
        await gateway.wait_ready(timeout_s=_START_S)
        self._step(f"gateway at {self.gateway_url}")
        if settings.autoscaler is not None:
            self._start_autoscaler(settings.autoscaler)
        settings.home.write_state(self.state)

    async def _wait_for_port(self, host: str, port: int) -> None:
        give_up_at_s = time.monotonic() + _PORT_PATIENCE_S
        while not port_is_free(host, port):
            if time.monotonic() > give_up_at_s:
                raise StartFailed(
                    f"port {port} of {host} is in use by another program: "
                    "name another with --port, or any free one with --port 0"
                )
            await asyncio.sleep(0.05)

    def _start_service(self, service: Service) -> Service:
        self._services.append(service)
        self._group.create_task(service.run())
        return service

    async def _start_redis(self) -> None:
        port = free_port()
        self.redis_url = f"redis://{_LOOPBACK}:{port}/0"
        home = self.settings.home
        shutil.rmtree(home.redis, ignore_errors=True)
        home.redis.mkdir(parents=True)
        command = redis_command(port, home.redis)
        spec = ServiceSpec("redis", command, home.logs / "redis.log", os.environ)

        async def is_ready() -> bool:
            return await is_answering(_LOOPBACK, port)

        await self._start_service(Service(spec, is_ready=is_ready)).wait_ready(timeout_s=_START_S)
        self._step(f"registry at {self.redis_url}")

    async def _start_object_store(self, endpoint: str) -> None:
        root = self.settings.objects
        root.mkdir(parents=True, exist_ok=True)
        port = int(endpoint.rpartition(":")[2])
        command = object_store_command(port, root, self.settings.home.sums)
        log_file = self.settings.home.logs / "object-store.log"
        spec = ServiceSpec("object store", command, log_file, os.environ)
        service = Service(spec, is_ready=_answers(endpoint + "/"))
        await self._start_service(service).wait_ready(timeout_s=_START_S)
        self._step(f"object store at {endpoint}")

    async def _connect(self) -> None:
        try:
            self._registry = await Registry.connect(self.redis_url, self.settings.pool)
        except RegistryUnavailable as error:
            raise StartFailed(f"no registry at {self.redis_url}: {error}") from error
        self._watch = ClusterWatch(self._registry)
        self._watch.subscribe(self._cluster_changed)
        self._watch_task = self._group.create_task(self._watch.run())
        async with asyncio.timeout(10.0):
            await self._watch.wait_synced()

    def _start_gateway(self, host: str, port: int) -> Service:
        command = [
            *python_module("gateway"), "--redis-url", self.redis_url,
            "--pool", self.settings.pool, "--host", host, "--port", str(port),
        ]  # fmt: skip
        log_file = self.settings.home.logs / "gateway.log"
        spec = ServiceSpec("gateway", command, log_file, self._child_env())
        return self._start_service(Service(spec, is_ready=_answers(self.gateway_url + "/readyz")))

    def _start_autoscaler(self, choice: AutoscalerChoice) -> None:
        """It is not waited for: nothing that a request needs depends on it."""
        metrics_port = free_port()
        self.autoscaler_metrics = f"http://{_LOOPBACK}:{metrics_port}/metrics"
        command = [
            *python_module("autoscaler"), "--redis-url", self.redis_url,
            "--pool", self.settings.pool, "--loading", choice.loading,
            "--pod-idle", str(choice.pod_idle_s), "--pod-stable", str(choice.pod_stable_s),
            "--pace", str(choice.pace), "--forecast-every", str(choice.forecast_every_s),
            "--metrics-port", str(metrics_port),
        ]  # fmt: skip
        if choice.loading_value is not None:
            command += ["--loading-value", str(choice.loading_value)]
        if choice.min_pods is not None and self._fleet is not None:
            command += ["--min-pods", str(choice.min_pods), "--max-pods", str(self.settings.pods)]
            scaling = PodScaling(
                self._fleet, self.watch, names=self._pod_names(), spawn=self._pod_spawn,
                drain_s=self.settings.stop_grace_s,
            )  # fmt: skip
            self._scaling_task = self._group.create_task(scaling.run())
        log_file = self.settings.home.logs / "autoscaler.log"
        spec = ServiceSpec("autoscaler", command, log_file, self._child_env())
        self._start_service(Service(spec, is_ready=_at_once))
        self._step(f"autoscaler, metrics at {self.autoscaler_metrics}")

    # Pods

    def _start_fleet(self) -> None:
        log_file = self.settings.home.logs / "zygote.log"
        self._fleet = PodProcesses(self._group, log_file=log_file, env=self._child_env())
        self._start_service(self._fleet.zygote)

    def _child_env(self) -> Mapping[str, str]:
        env = {
            **os.environ,
            "OMP_NUM_THREADS": str(self.settings.pod.threads),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "NO_PROXY": f"{os.environ.get('NO_PROXY', '')},127.0.0.1,localhost".lstrip(","),
        }
        env["no_proxy"] = env["NO_PROXY"]
        if self.s3_endpoint is not None:
            env |= {
                "AWS_ENDPOINT_URL": self.s3_endpoint,
                "AWS_ACCESS_KEY_ID": "pilotlight",
                "AWS_SECRET_ACCESS_KEY": "pilotlight",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            }
            for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
                env.pop(name, None)
        return env

    def _pod_names(self) -> list[str]:
        return [f"pod-{index}" for index in range(self.settings.pods)]

    def _pod_spawn(self, name: str) -> PodSpawn:
        settings, pod = self.settings, self.settings.pod
        node = name.replace("pod-", "node-")
        return PodSpawn(
            name=name,
            redis_url=self.redis_url,
            pool=settings.pool,
            node=node,
            slots=pod.slots,
            memory_bytes=pod.memory_bytes,
            cache_dir=str(settings.home.nodes / node),
            host_dir=str(settings.home.memory / node),
            link_rate=int(pod.link_bytes_per_s or 0),
            threads=pod.threads,
            allow_simulated_work=pod.allow_simulated_work,
            lease_ttl=settings.lease_ttl_s,
            drain_timeout=settings.stop_grace_s,
            retire_grace=pod.retire_grace_s,
            log_file=str(settings.home.logs / f"{name}.log"),
        )

    async def _fork_pods(self) -> None:
        if self._fleet is None:
            raise StartFailed("the platform is not started")
        await self._fleet.zygote.wait_ready(timeout_s=_START_S)
        self._step("libraries loaded, forking pods")
        names = self._pod_names()
        self._fleet.start([self._pod_spawn(name) for name in names])
        await self.until(
            lambda: all(self._is_pod_ready(name) for name in names),
            timeout_s=_START_S,
            what=f"{len(names)} pods ready (logs in {self.settings.home.logs})",
        )
        self._steps_done += len(names)
        self._say(f"{len(names)} pods ready")

    def _is_pod_ready(self, name: str) -> bool:
        pod = self.watch.state.pods.get(name)
        return pod is not None and pod.phase is PodPhase.READY

    async def restart_pods(self, pod: LocalPodSettings) -> None:
        """Replace all pods by empty ones with other settings: nothing warm, nothing on disk."""
        if self._fleet is None:
            raise StartFailed("the platform is not started")
        await self._fleet.stop_pods(grace_s=self.settings.stop_grace_s)
        await self.until(
            lambda: not self.watch.state.pods,
            timeout_s=self.settings.lease_ttl_s + 5.0,
            what="the old pods have left the registry",
        )
        self.settings.home.clear_nodes()
        self.settings = replace(self.settings, pod=pod)
        await self._fork_pods()

    # Stop

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._stop()
            await self._group.__aexit__(None, None, None)
        finally:
            self._lock.__exit__(None, None, None)

    async def _stop(self) -> None:
        """Gateway first, so that nothing new comes in; Redis last, as all others speak to it."""
        self._say("stopping")
        fleet_zygote = self._fleet.zygote if self._fleet else None
        by_name = {service.spec.name: service for service in self._services}
        if self._scaling_task is not None:
            self._scaling_task.cancel()
        if "autoscaler" in by_name:
            await by_name["autoscaler"].stop(grace_s=3.0)
        if "gateway" in by_name:
            await by_name["gateway"].stop(grace_s=self.settings.stop_grace_s)
        if self._fleet is not None and fleet_zygote is not None:
            await self._fleet.stop(grace_s=self.settings.stop_grace_s)
        if self._watch_task is not None:
            self._watch_task.cancel()
        if self._registry is not None:
            await self._registry.close()
        for name in ("object store", "redis"):
            if name in by_name:
                await by_name[name].stop(grace_s=3.0)
        self.settings.home.clear_nodes()
        shutil.rmtree(self.settings.home.redis, ignore_errors=True)

    # Progress

    def _step(self, text: str) -> None:
        self._steps_done += 1
        self._say(text)

    def _say(self, text: str) -> None:
        settings = self.settings
        total = settings.pods + 2 + int(settings.redis_url is None) + int(settings.s3)
        total += int(settings.autoscaler is not None)
        self._on_progress(StartProgress(min(self._steps_done, total), total, text))


async def _at_once() -> bool:
    return True


def _answers(url: str) -> Callable[[], Awaitable[bool]]:
    async def is_ready() -> bool:
        async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
            try:
                return (await client.get(url)).status_code == httpx.codes.OK
            except httpx.HTTPError:
                return False

    return is_ready


def describe(state: PlatformState) -> dict[str, Any]:
    """A running platform as `up --json` prints it."""
    return {
        "gateway": state.gateway,
        "pid": state.pid,
        "redis_url": state.redis_url,
        "pool": state.pool,
        "s3_endpoint": state.s3_endpoint,
        "autoscaler_metrics": state.autoscaler_metrics,
        "pods": list(state.pods),
    }
