"""The pods of this machine: forked by one forkserver, restarted with backoff, as many as wanted.

The forkserver (`python -m runtime.forkserver`) has imported the heavy libraries once. Heads of
messages to it are {"spawn": fields} and {"stop": name, "grace_s"}; {"ready"}, {"spawned", "pid"}
and {"exited", "status"} are received.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from common.backoff import KeyedBackoff
from common.child_process import RESTART, STABLE_S, Command, python_environment, python_module
from pilotlight.platform.processes import SupervisedProcess
from registry.domain.records import PlacedPod, WantedPods
from registry.errors import RegistryUnavailable
from registry.redis.reports import ArrivalLog
from registry.redis.watch import ClusterWatch
from runtime.tiers.generation_folder import GenerationFolder, cache_name

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _PodProcess:
    settings: Mapping[str, Any]
    """The runtime's settings by field name."""
    is_wanted: bool = False
    pid: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class PodProcesses:
    def __init__(self, group: asyncio.TaskGroup, *, log_file: Path, env: Mapping[str, str]) -> None:
        self._group = group
        self._pods: dict[str, _PodProcess] = {}
        self._is_ready = False
        self._stopping = asyncio.Event()
        self._backoff = KeyedBackoff(RESTART, fades_s=STABLE_S)
        command = Command(
            "forkserver", python_module("runtime.forkserver"), python_environment(env), log_file
        )
        self.forkserver = SupervisedProcess(
            command,
            is_ready=self._is_forkserver_ready,
            on_message=self._on_message,
            on_end=self._on_forkserver_end,
        )

    async def _is_forkserver_ready(self) -> bool:
        return self._is_ready

    @property
    def process_ids(self) -> dict[str, int]:
        return {name: pod.pid for name, pod in self._pods.items() if pod.pid is not None}

    def start(self, pods: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep these pods running from now on; they start as soon as the forkserver is ready.

        `pods`: the runtime's settings by pod name.
        """
        for name, settings in pods.items():
            pod = self._pods.setdefault(name, _PodProcess(settings))
            pod.settings, pod.is_wanted = settings, True
            self._backoff.succeeded(name)
            if self._is_ready:
                self._group.create_task(self._spawn(pod))

    @property
    def wanted(self) -> set[str]:
        """Names of the pods to keep running, started or not."""
        return {name for name, pod in self._pods.items() if pod.is_wanted}

    async def retire(self, names: Iterable[str], *, grace_s: float) -> None:
        """Drain these pods and do not restart them; returns before they end."""
        for name in names:
            pod = self._pods[name]
            pod.is_wanted = False
            if pod.pid is not None:
                self.forkserver.send({"stop": name, "grace_s": grace_s})

    async def stop_pods(self, *, grace_s: float) -> None:
        """Drain all pods and wait for their end."""
        running = [pod for pod in self._pods.values() if pod.pid is not None]
        for pod in self._pods.values():
            pod.is_wanted = False
        for pod in running:
            pod.ended.clear()
            self.forkserver.send({"stop": pod.settings["name"], "grace_s": grace_s})
        try:
            async with asyncio.timeout(
                grace_s + 3.0
            ):  # the forkserver kills after the grace period
                for pod in running:
                    if pod.pid is not None:
                        await pod.ended.wait()
        except TimeoutError:
            logger.warning("pods did not end in time", extra={"pods": sorted(self.process_ids)})

    async def stop(self, *, grace_s: float) -> None:
        """Stop all pods, then the forkserver."""
        self._stopping.set()
        if self._is_ready:
            await self.stop_pods(grace_s=grace_s)
        await self.forkserver.stop(grace_s=3.0)

    async def _spawn(self, pod: _PodProcess, delay_s: float = 0.0) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        if pod.is_wanted and pod.pid is None and self._is_ready and not self._stopping.is_set():
            self.forkserver.send({"spawn": dict(pod.settings)})

    def _on_forkserver_end(self) -> None:
        self._is_ready = False
        for pod in self._pods.values():
            pod.pid = None  # the kernel kills pods when their parent dies
            pod.ended.set()

    def _on_message(self, message: dict[str, Any], _: bytes) -> None:
        match message:
            case {"ready": True}:
                self._is_ready = True
                for pod in self._pods.values():
                    self._group.create_task(self._spawn(pod))
            case {"spawned": str(name), "pid": int(pid)} if name in self._pods:
                self._pods[name].pid = pid
            case {"exited": str(name), "status": status} if name in self._pods:
                self._on_pod_death(self._pods[name], status)
            case _:
                logger.warning(
                    "the forkserver sent an unknown message", extra={"text": str(message)[:200]}
                )

    def _on_pod_death(self, pod: _PodProcess, status: object) -> None:
        pod.pid = None
        pod.ended.set()
        if not pod.is_wanted or self._stopping.is_set():
            return
        delay_s = self._backoff.failed(pod.settings["name"], time.monotonic())
        logger.warning(
            "pod died; restarting it",
            extra={"pod": pod.settings["name"], "status": status, "delay_s": delay_s},
        )
        self._group.create_task(self._spawn(pod, delay_s))


async def follow_wanted_pods(
    pod_processes: PodProcesses,
    watch: ClusterWatch,
    *,
    names: Sequence[str],
    settings_of: Callable[[str], Mapping[str, Any]],
    drain_s: float,
) -> None:
    """Keep the number of pods at the one that the autoscaler wants, until cancelled.

    `names` are all pods that may run; pods are started in this order, with their settings of the
    runtime. Of several, the pods start first whose node has most of what requests wait for on its
    disk.
    """
    changed = asyncio.Event()
    watch.subscribe(changed.set)
    applied: WantedPods | None = None
    while True:
        await changed.wait()
        changed.clear()
        wanted = watch.state.wanted
        if wanted is None or wanted == applied:
            continue
        applied = wanted
        running = pod_processes.wanted & set(names)
        if retired := pods_to_retire(running, wanted, names):
            logger.info("draining pods", extra={"pods": retired})
            await pod_processes.retire(retired, grace_s=drain_s)
        if wanted.pods <= len(running):
            continue
        folders = {name: Path(settings_of(name)["cache_dir"]) for name in names}
        cached = await asyncio.to_thread(_cached_bytes, folders, await _waiting_keys(watch))
        busy = set(pod_processes.process_ids)
        if started := pods_to_start(running, wanted, names, busy=busy, cached_bytes=cached):
            logger.info("starting pods", extra={"pods": started})
            pod_processes.start({name: settings_of(name) for name in started})


def pods_to_retire(running: set[str], wanted: WantedPods, names: Sequence[str]) -> list[str]:
    """Surplus pods: first the ones that `wanted` names, then from the end of `names`."""
    surplus = len(running) - wanted.pods
    if surplus <= 0:
        return []
    named = [name for name in wanted.leaving if name in running]
    others = [name for name in reversed(names) if name in running and name not in named]
    return [*named, *others][:surplus]


async def _waiting_keys(watch: ClusterWatch) -> list[str]:
    """Of the models that requests wait for; none while the registry is away."""
    try:
        waiting = await ArrivalLog(watch.registry).queue_stats()
    except RegistryUnavailable:
        return []
    models = watch.state.models
    return [models[name].serving.key for name in waiting if name in models]


def _cached_bytes(folders: Mapping[str, Path], keys: Sequence[str]) -> dict[str, int]:
    """Weights of the models in each disk cache, by pod."""
    return {
        name: sum(GenerationFolder(folder / cache_name(key)).complete_bytes() for key in keys)
        for name, folder in folders.items()
    }


def pods_to_start(
    running: set[str],
    wanted: WantedPods,
    names: Sequence[str],
    *,
    busy: set[str],
    cached_bytes: Mapping[str, int],
) -> list[str]:
    """Missing pods, those with most `cached_bytes` first, of equal ones in order of `names`.

    Pods whose former process still runs (`busy`) come last.
    """
    missing = wanted.pods - len(running)
    if missing <= 0:
        return []
    free = [name for name in names if name not in running]
    free.sort(key=lambda name: (name in busy, -cached_bytes.get(name, 0)))
    return free[:missing]


_PREFIX: Final = "placed-"


async def follow_placement(
    pod_processes: PodProcesses,
    watch: ClusterWatch,
    *,
    settings_of: Callable[[PlacedPod, Sequence[int]], Mapping[str, Any]],
    drain_s: float,
) -> None:
    """Keep exactly the recorded pods running until cancelled.

    `settings_of` gets the cores that recorded pods with a share already have.
    """
    cores: dict[str, list[int]] = {}
    changed = asyncio.Event()
    watch.subscribe(changed.set)
    while True:
        await changed.wait()
        changed.clear()
        record = watch.state.placement
        if record is None:
            continue
        wanted = {pod.name: pod for pod in record.pods}
        running = {name for name in pod_processes.wanted if name.startswith(_PREFIX)}
        if retired := sorted(running - wanted.keys()):
            logger.info("draining placed pods", extra={"pods": retired})
            await pod_processes.retire(retired, grace_s=drain_s)
        if started := sorted(wanted.keys() - running):
            logger.info("starting placed pods", extra={"pods": started})
            cores = {name: mine for name, mine in cores.items() if name in wanted}
            for name in started:
                taken = [core for mine in cores.values() for core in mine]
                settings = settings_of(wanted[name], taken)
                if settings.get("cores") and settings["share"]:
                    cores[name] = [int(core) for core in settings["cores"].split(",")]
                pod_processes.start({name: settings})
