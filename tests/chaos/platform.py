"""The platform under test: a detached `pilotlight up` with its own Redis, disk and ledger."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from pilotlight.platform.processes import free_port
from registry.domain.cluster import ClusterState
from registry.domain.pod import PodPhase
from registry.errors import RegistryUnavailable
from registry.inference_service.reader import read_documents
from registry.redis.client import Registry
from tests import servers
from tests.chaos.models import declaration, write_models
from tests.chaos.processes import MARK, Process, ProcessTable, listening_ports
from tests.chaos.redis_group import RedisGroup
from tests.chaos.scrape import MetricMissing, present_metric

DISK_BYTES: Final = 256 << 20
MODELS_MISSING: Final = "Redis lacks models"
_START_TIMEOUT_S: Final = 300.0
_LEDGER_FOLDER: Final = Path(__file__).with_name("ledger")


@dataclass
class PlatformUnderTest:
    """Everything on one small file system, so that a full disk is full for all."""

    folder: Path
    pods: int
    models: int
    port: int = field(default_factory=free_port)
    has_own_disk: bool = False
    """Whether `disk` is a file system of its own, which a fault can fill."""

    def __post_init__(self) -> None:
        self.disk = self.folder / "disk"
        self.ledger = self.folder / "ledger.txt"
        self.redis = RedisGroup(self.disk / "redis-group")
        self._table = ProcessTable(str(self.ledger))

    @property
    def home(self) -> Path:
        return self.disk / "home"

    @property
    def temporary(self) -> Path:
        return self.disk / "tmp"

    def start(self) -> None:
        self.disk.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.disk)]
        done = subprocess.run(command, check=False, capture_output=True)
        self.has_own_disk = done.returncode == 0
        for each in (self.home, self.temporary, self.redis.folder):
            each.mkdir(parents=True)
        write_models(self.folder / "objects", self.models)
        self.redis.start()
        self.up()
        asyncio.run(self.declare())

    def down(self) -> None:
        self._cli("down")

    def stop(self) -> None:
        """End everything, however the campaign ended."""
        self._cli("down", check=False)
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.redis.stop()
        if self.has_own_disk:
            subprocess.run(["umount", "-l", str(self.disk)], check=False)

    def up(self) -> None:
        self._cli(
            "up",
            "--detach",
            "--json",
            "--port",
            str(self.port),
            "--pods",
            str(self.pods),
            "--redis-url",
            self.redis.url,
            "--objects",
            str(self.folder / "objects"),
            "--slots",
            "4",
            "--pod-memory",
            "16MB",
        )

    async def declare(self, numbers: range | None = None) -> None:
        """Declare models, all by default, as `apply` does. Raises RegistryUnavailable."""
        text = declaration(numbers or range(self.models))
        specs = read_documents([("chaos", text)], default_namespace="default")
        registry = await Registry.connect(self.redis.url)
        try:
            await registry.put_models(specs)
        finally:
            await registry.close()

    def _cli(self, *arguments: str, check: bool = True) -> None:
        environment = {
            **os.environ,
            MARK: str(self.ledger),
            "PYTHONPATH": str(_LEDGER_FOLDER),
            "TMPDIR": str(self.temporary),
        }
        done = subprocess.run(
            [sys.executable, "-m", "pilotlight", *arguments, "--home", str(self.home)],
            cwd=servers.REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_TIMEOUT_S,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")

    # What is there

    def processes(self) -> list[Process]:
        """The platform's processes. This one got the mark after its start and is not among them."""
        return self._table.read()

    def of_role(self, role: str) -> list[Process]:
        return [each for each in self.processes() if each.role == role]

    async def state(self) -> ClusterState:
        """The pool as Redis has it. Raises RegistryUnavailable."""
        registry = await Registry.connect(self.redis.url)
        try:
            return await registry.cluster()
        finally:
            await registry.close()

    async def gateway_metric(self, name: str) -> float:
        url = f"http://127.0.0.1:{self.port}/metrics"
        async with httpx.AsyncClient(trust_env=False, timeout=3.0) as client:
            return present_metric((await client.get(url)).text, name)

    async def why_unhealthy(self) -> str:
        """What is not as it was before the faults; empty if nothing is."""
        roles = [each.role for each in self.processes()]
        singles = ("supervisor", "gateway", "autoscaler", "scheduler", "forkserver", "object store")
        for role, count in (*((role, 1) for role in singles), ("pod", self.pods)):
            if roles.count(role) != count:
                return f"{roles.count(role)} instead of {count} processes: {role}"
        if not listening_ports({each.pid for each in self.of_role("autoscaler")}):
            return "the autoscaler does not listen"
        try:
            state = await self.state()
            ready = [each for each in state.pods.values() if each.phase is PodPhase.READY]
            if len(ready) != self.pods:
                return f"{len(ready)} instead of {self.pods} pods in Redis"
            if len(state.models) < self.models:
                return MODELS_MISSING
            age_s = await self.gateway_metric("pilotlight_gateway_registry_age_seconds")
            if age_s > 3.0:
                return f"the gateway's state is {age_s:.1f} s old"
        except (RegistryUnavailable, httpx.HTTPError, MetricMissing, OSError) as error:
            return repr(error)
        return ""
