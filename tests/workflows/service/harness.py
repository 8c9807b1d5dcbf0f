"""Deploys and runs workflows through a real gateway and scheduler."""

import contextlib
import subprocess
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, PodProcess

SHORT_LEASES = ("tests.with_constants", "workflows.journal:LEASE_S=1.0", "workflows")
HEAD = "from pilotlight.workflow import model, now, random, tensor, uuid4, workflow\n"
TWO_STEPS = """
@workflow
async def two_steps(text: str):
    return await model("judge")(texts=model("writer")(text)["text"])
"""


@dataclass
class Scheduler:
    process: subprocess.Popen[bytes]
    url: str
    log_file: Path

    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"the scheduler ended:\n{self.log_file.read_text()}")
        return httpx.get(f"{self.url}/readyz", trust_env=False, timeout=5).status_code == 200

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running_scheduler(
    folder: Path,
    redis_url: str,
    pool: str,
    gateway_url: str,
    *,
    port: int,
    program: Sequence[str] = SHORT_LEASES,
    **settings: Any,
) -> Iterator[Scheduler]:
    """A ready scheduler; stopped at the end if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    log_file = folder / "scheduler.log"
    with (
        open(log_file, "ab") as log,
        servers.running(
            *program,
            stderr=log,
            port=port,
            redis_url=redis_url,
            pool=pool,
            gateway_url=gateway_url,
            **settings,
        ) as process,
    ):
        started = Scheduler(process, f"http://127.0.0.1:{port}", log_file)
        servers.wait_until(started.is_ready, what="scheduler ready")
        yield started


@dataclass
class WorkflowHarness:
    pool: GatewayHarness
    folder: Path
    scheduler: Scheduler
    pods: PodProcess | None = None
    deployed: int = 0

    @property
    def url(self) -> str:
        return f"{self.pool.gateway.url}/v1/workflows"

    def put(self, source: str, name: str = "") -> httpx.Response:
        """Deploy a file, with the imports of `HEAD`."""
        self.deployed += 1
        text = HEAD + textwrap.dedent(source)
        return self.pool.client.put(f"{self.url}/{name or f'w{self.deployed}'}", content=text)

    def deploy(self, source: str) -> str:
        """Deploy a file; the workflow's name."""
        response = self.put(source)
        assert response.status_code == 200, response.text
        return str(response.json()["name"])

    def run(self, name: str, arguments: Any = None, **headers: str) -> httpx.Response:
        dashed = {key.replace("_", "-"): value for key, value in headers.items()}
        return self.pool.client.post(f"{self.url}/{name}:run", json=arguments or {}, headers=dashed)

    def result(self, name: str, arguments: Any = None, **headers: str) -> Any:
        response = self.run(name, arguments, **headers)
        assert response.status_code == 200, response.text
        return response.json()["result"]

    def start(self, name: str, arguments: Any = None, **headers: str) -> str:
        """Begin a run without waiting; its URL."""
        response = self.run(name, arguments, prefer="respond-async", **headers)
        assert response.status_code == 202, response.text
        return f"{self.pool.gateway.url}{response.headers['location']}"

    def status(self, location: str) -> dict[str, Any]:
        response = self.pool.client.get(location)
        assert response.status_code == 200, response.text
        document: dict[str, Any] = response.json()
        return document

    def wait_ended(self, location: str) -> dict[str, Any]:
        servers.wait_until(lambda: self.status(location)["status"] != "running", what="run ended")
        return self.status(location)

    def release(self) -> None:
        """Let the held models of all pods go on."""
        assert self.pods is not None
        for pod in self.pods.ports:
            self.pods.control(pod, "release")

    def release_until(self, is_over: Callable[[], bool]) -> None:
        def has_ended() -> bool:
            self.release()
            return is_over()

        servers.wait_until(has_ended, what="run ended")

    def released(self, location: str) -> dict[str, Any]:
        """A run that has ended, with its held models let go."""
        self.release_until(lambda: self.status(location)["status"] != "running")
        return self.status(location)

    def other_scheduler(
        self, name: str, *, port: int = 0, **settings: Any
    ) -> contextlib.AbstractContextManager[Scheduler]:
        """Another scheduler of the pool, by default at a free port."""
        return running_scheduler(
            self.folder / name,
            self.pool.redis_url,
            self.pool.pool,
            self.pool.gateway.url,
            port=port or servers.free_port(),
            **settings,
        )

    def replace_scheduler(self, name: str) -> None:
        """Kill the scheduler, and start another at its port."""
        self.scheduler.kill()
        port = urlsplit(self.scheduler.url).port
        self.scheduler = self.pool.stack.enter_context(self.other_scheduler(name, port=port or 0))


def runners_of(harness: WorkflowHarness, name: str) -> list[int]:
    """Process ids of a workflow's runners, as the scheduler logged them."""
    lines = harness.scheduler.log_file.read_text().splitlines()
    started = [line for line in lines if f"runner started workflow=default/{name} " in line]
    pids = [int(line.partition("pid=")[2].split()[0]) for line in started]
    return [pid for pid in pids if servers.is_alive(pid)]
