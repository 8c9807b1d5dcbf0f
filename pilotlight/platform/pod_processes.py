"""The pods of this machine: forked by one zygote process, restarted with back-off when they die.

Speaks JSON lines with `python -m runtime.forkserver`, which has imported the heavy libraries once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pilotlight.platform.backoff import Backoff, BackoffParams, after_death
from pilotlight.platform.processes import python_module
from pilotlight.platform.service import Service, ServiceSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodSpawn:
    """The settings of one pod, in the words of the runtime."""

    name: str
    redis_url: str
    pool: str
    node: str
    slots: int
    memory_bytes: int
    cache_dir: str
    host_dir: str
    """Folder of tier host."""
    link_rate: int
    """Bytes per second; 0: no limit."""
    threads: int
    allow_simulated_work: bool
    lease_ttl: float
    drain_timeout: float
    retire_grace: float
    log_file: str
    host: str = "127.0.0.1"
    port: int = 0


@dataclass(slots=True)
class _PodProcess:
    spawn: PodSpawn
    wanted: bool = False
    pid: int | None = None
    started_s: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class PodProcesses:
    """Owns the zygote and knows the process id of every pod."""

    def __init__(self, group: asyncio.TaskGroup, *, log_file: Path, env: Mapping[str, str]) -> None:
        self._group = group
        self._pods: dict[str, _PodProcess] = {}
        self._is_up = False
        self._stopping = asyncio.Event()
        spec = ServiceSpec("zygote", python_module("runtime.forkserver"), log_file, env, piped=True)
        self.zygote = Service(
            spec, is_ready=self._zygote_is_up, on_line=self._heard, on_death=self._zygote_died
        )

    async def _zygote_is_up(self) -> bool:
        return self._is_up

    @property
    def process_ids(self) -> dict[str, int]:
        """Process id of each pod that runs."""
        return {name: pod.pid for name, pod in self._pods.items() if pod.pid is not None}

    def start(self, spawns: Sequence[PodSpawn]) -> None:
        """Want these pods from now on; they start as soon as the zygote can fork them."""
        for spawn in spawns:
            pod = self._pods.setdefault(spawn.name, _PodProcess(spawn))
            pod.spawn, pod.wanted, pod.backoff = spawn, True, Backoff()
            if self._is_up:
                self._group.create_task(self._spawn(pod))

    @property
    def wanted(self) -> set[str]:
        """Pods that are to run, whether or not they do yet."""
        return {name for name, pod in self._pods.items() if pod.wanted}

    async def retire(self, names: Iterable[str], *, grace_s: float) -> None:
        """Drain these pods and let them end; they do not start again."""
        for name in names:
            pod = self._pods[name]
            pod.wanted = False
            if pod.pid is not None:
                await self._say({"stop": name, "grace_s": grace_s})

    async def stop_pods(self, *, grace_s: float) -> None:
        """Drain and end all pods; return when they are gone."""
        running = [pod for pod in self._pods.values() if pod.pid is not None]
        for pod in self._pods.values():
            pod.wanted = False
        for pod in running:
            pod.gone.clear()
            await self._say({"stop": pod.spawn.name, "grace_s": grace_s})
        try:
            async with asyncio.timeout(grace_s + 3.0):  # the zygote kills after the grace
                for pod in running:
                    if pod.pid is not None:
                        await pod.gone.wait()
        except TimeoutError:
            logger.warning("pods did not end in time", extra={"pods": sorted(self.process_ids)})

    async def stop(self, *, grace_s: float) -> None:
        """End all pods, then the zygote."""
        self._stopping.set()
        if self._is_up:
            await self.stop_pods(grace_s=grace_s)
        await self.zygote.stop(grace_s=3.0)

    async def _say(self, message: Mapping[str, Any]) -> None:
        await self.zygote.send(json.dumps(message).encode())

    async def _spawn(self, pod: _PodProcess, delay_s: float = 0.0) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        if pod.wanted and pod.pid is None and self._is_up and not self._stopping.is_set():
            pod.started_s = time.monotonic()
            await self._say({"spawn": asdict(pod.spawn)})

    def _zygote_died(self) -> None:
        self._is_up = False
        for pod in self._pods.values():
            pod.pid = None  # the kernel ended them with their parent
            pod.gone.set()

    def _heard(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            logger.warning("the zygote said no JSON", extra={"line": line[:200]})
            return
        match message:
            case {"ready": True}:
                self._is_up = True
                for pod in self._pods.values():
                    self._group.create_task(self._spawn(pod))
            case {"spawned": str(name), "pid": int(pid)} if name in self._pods:
                self._pods[name].pid = pid
            case {"exited": str(name), "status": status} if name in self._pods:
                self._pod_died(self._pods[name], status)
            case _:
                logger.warning("the zygote said something unknown", extra={"line": line[:200]})

    def _pod_died(self, pod: _PodProcess, status: object) -> None:
        pod.pid = None
        pod.gone.set()
        if not pod.wanted or self._stopping.is_set():
            return
        ran_s = time.monotonic() - pod.started_s
        pod.backoff, delay_s = after_death(pod.backoff, ran_s=ran_s, params=BackoffParams())
        logger.warning(
            "pod died; it starts again",
            extra={"pod": pod.spawn.name, "status": status, "delay_s": delay_s},
        )
        self._group.create_task(self._spawn(pod, delay_s))
