"""The platform on one machine, as one object: starts every part, supervises, stops in order.

    async with Platform(settings) as platform:
        ... platform.gateway_url ...

Redis, object store, gateway and autoscaler are supervised processes; a forkserver forks the pods.
Requests do not pass through here: gateway and pods communicate through the registry.
"""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

from common.child_process import Command
from common.process import socket_folder
from pilotlight.errors import StartFailed
from pilotlight.platform.accelerators import (
    MPS,
    is_mps_ready,
    mps_environment,
    mps_spec,
    visible_gpus,
)
from pilotlight.platform.kept_declarations import ClusterConnection, KeptDeclarations
from pilotlight.platform.pod_processes import PodProcesses, follow_placement, follow_wanted_pods
from pilotlight.platform.processes import (
    SupervisedProcess,
    free_port,
    is_redis_ready,
    returns_ok,
    wait_for_ports,
)
from pilotlight.platform.settings import (
    PlatformSettings,
    autoscaler_spec,
    child_environment,
    embedded_redis_url,
    gateway_spec,
    object_store_spec,
    placed_pod_settings,
    pod_settings,
    redis_spec,
    scheduler_spec,
)
from pilotlight.state_dir import PlatformState
from registry.domain.pod import PodPhase
from registry.domain.records import PlacedPod
from registry.errors import RegistryUnavailable
from registry.redis.acl import Role

_LOOPBACK = "127.0.0.1"
_RULES_INTERVAL_S = 1.0
_START_TIMEOUT_S = 180.0
"""For one process to become ready; importing torch takes a minute on a busy machine."""


class Platform:
    """Runs from `__aenter__` to `__aexit__`. `on_progress` gets (steps done, steps, text)."""

    def __init__(
        self, settings: PlatformSettings, on_progress: Callable[[int, int, str], None] | None = None
    ) -> None:
        self.settings = settings
        self.redis_url = settings.redis_url or ""
        self._redis_url_of: Callable[[Role], str] = lambda _: self.redis_url
        self.gateway_url = ""
        self.grpc_address = ""
        self.s3_endpoint: str | None = None
        self.autoscaler_metrics: str | None = None
        self._on_progress = on_progress or (lambda _done, _total, _text: None)
        self._exit_stack = AsyncExitStack()
        self._group = asyncio.TaskGroup()
        self._processes: dict[str, SupervisedProcess] = {}
        self._pods: PodProcesses | None = None
        self._cluster: ClusterConnection | None = None
        self._declarations: KeptDeclarations | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._steps_done = 0
        self._scheduler_url = ""
        self._gpus: tuple[str, ...] = ()

    @property
    def cluster(self) -> ClusterConnection:
        if self._cluster is None:
            raise StartFailed("the platform is not started")
        return self._cluster

    @property
    def state(self) -> PlatformState:
        """The contents of `platform.json` once the platform is ready."""
        return PlatformState(
            pid=os.getpid(),
            phase="ready",
            gateway=self.gateway_url,
            redis_url=self.redis_url,
            pool=self.settings.pool,
            grpc=self.grpc_address,
            s3_endpoint=self.s3_endpoint,
            autoscaler_metrics=self.autoscaler_metrics,
            pods=tuple(self._pod_names()),
        )

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.enter_context(self.settings.state_dir.lock())
            await stack.enter_async_context(self._exit_stack)  # resources of `_start`
            await self._group.__aenter__()
            # As a callback, the group does not wrap the error of a failed start in a group.
            stack.push_async_callback(self._group.__aexit__, None, None, None)
            stack.push_async_callback(self._stop)
            await self._start()
            self._exit_stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit_stack.aclose()

    async def _start(self) -> None:
        settings = self.settings
        host, port = settings.host, settings.port or free_port(settings.host)
        await wait_for_ports(host, port, settings.grpc_port)
        shown_host = _LOOPBACK if host in {"0.0.0.0", "::"} else host
        self.gateway_url = f"http://{shown_host}:{port}"
        self.grpc_address = f"{shown_host}:{settings.grpc_port}" if settings.grpc_port else ""
        settings.state_dir.clear_nodes()
        settings.state_dir.write_pod_secret()
        self._report("starting")
        s3_port = free_port() if settings.s3 else 0
        if s3_port:
            self.s3_endpoint = f"http://{_LOOPBACK}:{s3_port}"
        env = child_environment(settings, self.s3_endpoint)
        self._gpus = await asyncio.to_thread(visible_gpus, env)
        if settings.mps:
            env |= await self._start_mps(env)
        # The forkserver starts first, as its imports take longest; it needs no Redis before a pod.
        self._pods = PodProcesses(
            self._group, log_file=settings.state_dir.logs / "forkserver.log", env=env
        )
        self._run(self._pods.forkserver)
        if settings.redis_url is None:
            await self._start_redis()
        if s3_port:
            store = self._start_process(
                object_store_spec(settings, s3_port), returns_ok(f"{self.s3_endpoint}/")
            )
            await store.wait_ready(timeout_s=_START_TIMEOUT_S)
            self._report_step(f"object store at {self.s3_endpoint}")
        self._cluster = await ClusterConnection.open(self.redis_url, settings.pool, self._group)
        await self._cluster.registry.put_rules(settings.rules)
        self._tasks.append(self._group.create_task(self._keep_rules(self._cluster)))
        if settings.keeps_declared and settings.redis_url is None:
            await self._restore_declared(self._cluster)
        scheduler_port = free_port()
        self._scheduler_url = f"http://{_LOOPBACK}:{scheduler_port}"
        places = {"host": host, "port": port, "workflows_url": self._scheduler_url}
        redis_url = self._redis_url_of(Role.GATEWAY)
        spec = gateway_spec(settings, env, redis_url=redis_url, **places)
        gateway = self._start_process(spec, returns_ok(f"{self.gateway_url}/readyz"))
        places = {"port": scheduler_port, "gateway_url": self.gateway_url}
        redis_url = self._redis_url_of(Role.SCHEDULER)
        spec = scheduler_spec(settings, env, redis_url=redis_url, **places)
        scheduler = self._start_process(spec, returns_ok(f"{self._scheduler_url}/readyz"))
        await self._fork_pods()
        await gateway.wait_ready(timeout_s=_START_TIMEOUT_S)
        self._report_step(f"gateway at {self.gateway_url}")
        await scheduler.wait_ready(timeout_s=_START_TIMEOUT_S)
        self._report_step("scheduler of workflows")
        if settings.autoscaler is not None:
            self._start_autoscaler(settings.autoscaler, env)
        settings.state_dir.write_state(self.state)

    def _start_process(
        self, spec: Command, is_ready: Callable[[], Awaitable[bool]]
    ) -> SupervisedProcess:
        return self._run(SupervisedProcess(spec, is_ready=is_ready))

    def _run(self, process: SupervisedProcess) -> SupervisedProcess:
        self._processes[process.command.name] = process
        self._group.create_task(process.run())
        return process

    async def _start_mps(self, env: dict[str, str]) -> dict[str, str]:
        """Start the MPS daemon; returns the environment variables by which pods find it."""
        logs = self.settings.state_dir.logs
        found = mps_environment(self._exit_stack.enter_context(socket_folder()), logs)
        env = {**env, **found}
        daemon = self._start_process(mps_spec(logs, env), partial(is_mps_ready, env))
        await daemon.wait_ready(timeout_s=_START_TIMEOUT_S)
        self._report_step("MPS daemon")
        return found

    async def _start_redis(self) -> None:
        path = self._exit_stack.enter_context(socket_folder()) / "redis.sock"
        self._redis_url_of = partial(embedded_redis_url, self.settings, path)
        self.redis_url = self._redis_url_of(Role.CONTROLLER)
        spec = redis_spec(self.settings, path)
        redis = self._start_process(spec, lambda: is_redis_ready(self.redis_url))
        await redis.wait_ready(timeout_s=_START_TIMEOUT_S)
        self._report_step(f"registry at {self.redis_url}")

    async def _restore_declared(self, cluster: ClusterConnection) -> None:
        file = self.settings.state_dir.declared_file(self.settings.pool)
        self._declarations = KeptDeclarations(file, cluster)
        if models := await self._declarations.restore():
            self._report(f"{models} models of the last run declared again")
        self._tasks.append(self._group.create_task(self._declarations.save_periodically()))

    async def _keep_rules(self, cluster: ClusterConnection) -> None:
        """Write them again to a registry that lost its data."""
        while True:
            await asyncio.sleep(_RULES_INTERVAL_S)
            if cluster.state.rules is None:
                with suppress(RegistryUnavailable):
                    await cluster.registry.put_rules(self.settings.rules)

    def _start_autoscaler(self, autoscaler: Mapping[str, Any], env: dict[str, str]) -> None:
        """Start without waiting for readiness: no request depends on the autoscaler."""
        metrics_port = free_port()
        self.autoscaler_metrics = f"http://{_LOOPBACK}:{metrics_port}/metrics"
        if autoscaler.get("min_pods") is not None and self._pods is not None:
            scaling = follow_wanted_pods(
                self._pods,
                self.cluster.watch,
                names=self._pod_names(),
                settings_of=self._pod_settings,
                drain_s=self.settings.stop_grace_s,
            )
            self._tasks.append(self._group.create_task(scaling))
        if autoscaler.get("placement", "off") != "off" and self._pods is not None:
            placing = follow_placement(
                self._pods,
                self.cluster.watch,
                settings_of=self._placed_pod_settings,
                drain_s=self.settings.stop_grace_s,
            )
            self._tasks.append(self._group.create_task(placing))
        spec = autoscaler_spec(
            self.settings,
            autoscaler,
            env,
            redis_url=self._redis_url_of(Role.AUTOSCALER),
            metrics_port=metrics_port,
        )
        self._start_process(spec, returns_ok(self.autoscaler_metrics))
        self._report_step(f"autoscaler, metrics at {self.autoscaler_metrics}")

    def _pod_names(self) -> list[str]:
        return [f"pod-{index}" for index in range(self.settings.pods)]

    def _pod_settings(self, name: str) -> dict[str, Any]:
        url = self._redis_url_of(Role.POD)
        return pod_settings(self.settings, name, redis_url=url, gpus=self._gpus)

    def _placed_pod_settings(self, pod: PlacedPod, taken: Sequence[int]) -> dict[str, Any]:
        url = self._redis_url_of(Role.POD)
        return placed_pod_settings(self.settings, pod, redis_url=url, taken=taken)

    async def _fork_pods(self) -> None:
        if self._pods is None:
            raise StartFailed("the platform is not started")
        await self._pods.forkserver.wait_ready(timeout_s=_START_TIMEOUT_S)
        self._report_step("libraries loaded, forking pods")
        names = self._pod_names()
        self._pods.start({name: self._pod_settings(name) for name in names})
        await self.cluster.wait_until(
            lambda: all(self._is_pod_ready(name) for name in names),
            timeout_s=_START_TIMEOUT_S,
            what=f"{len(names)} pods ready (logs in {self.settings.state_dir.logs})",
        )
        self._steps_done += len(names)
        self._report(f"{len(names)} pods ready")

    def _is_pod_ready(self, name: str) -> bool:
        pod = self.cluster.state.pods.get(name)
        return pod is not None and pod.phase is PodPhase.READY

    async def restart_pods(self, pod: Mapping[str, Any]) -> None:
        """Replace all pods by pods with these settings, with empty memory and disk caches."""
        if self._pods is None:
            raise StartFailed("the platform is not started")
        await self._pods.stop_pods(grace_s=self.settings.stop_grace_s)
        await self.cluster.wait_until(
            lambda: not self.cluster.state.pods,
            timeout_s=self.settings.lease_ttl_s + 5.0,
            what="all former pods removed from the registry",
        )
        self.settings.state_dir.clear_nodes()
        self.settings = replace(self.settings, pod=pod)
        await self._fork_pods()

    async def _stop(self) -> None:
        """Stop the gateway before the pods, so that no request arrives at them, and Redis last.

        The gateway serves the steps of the scheduler's runs until the scheduler has ended.
        """
        self._report("stopping")
        grace_s = self.settings.stop_grace_s
        for task in self._tasks:
            task.cancel()
        if "gateway" in self._processes:
            self._processes["gateway"].announce_stop()
        for name, process_grace_s in (
            ("autoscaler", 3.0),
            ("scheduler", grace_s),
            ("gateway", grace_s),
        ):
            if name in self._processes:
                await self._processes[name].stop(grace_s=process_grace_s)
        if self._pods is not None:
            await self._pods.stop(grace_s=grace_s)
        if self._declarations is not None:
            await self._declarations.save()
        if self._cluster is not None:
            await self._cluster.close()
        for name in ("object store", "redis", MPS):
            if name in self._processes:
                await self._processes[name].stop(grace_s=3.0)
        self.settings.state_dir.clear_nodes()
        shutil.rmtree(self.settings.state_dir.redis, ignore_errors=True)

    def _report_step(self, text: str) -> None:
        self._steps_done += 1
        self._report(text)

    def _report(self, text: str) -> None:
        settings = self.settings
        total = settings.pods + 3 + int(settings.redis_url is None) + int(settings.s3)
        total += int(settings.autoscaler is not None) + int(settings.mps)
        self._on_progress(min(self._steps_done, total), total, text)
