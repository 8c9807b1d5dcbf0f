"""Redis, a gateway and a pod that is warm for a model of each tenant, on pinned cores."""

import contextlib
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from benchmarks.declared_models import declare_models
from benchmarks.machine import REPOSITORY
from benchmarks.overload.generator import BODY, Load, Sent
from benchmarks.proxy.processes import BenchmarkProcess, post, start
from pilotlight.platform.processes import free_port, redis_command
from registry.domain.model import ModelName, ModelSpec

TENANTS: Final = ("tenant-a", "tenant-b", "tenant-c", "greedy")
_MODEL: Final = "m"
_POD_CORE: Final = 0
_OTHER_CORE: Final = 1
_START_S: Final = 180.0
_ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def path_of(tenant: str) -> str:
    return f"/serving/{tenant}/{_MODEL}/v1/models/{_MODEL}:predict"


@dataclass(frozen=True, slots=True)
class Servers:
    port: int
    pod: BenchmarkProcess
    gateway: BenchmarkProcess

    def send(self, load: Load) -> list[Sent]:
        """Send a load from the core of the gateway; returns when nothing of it is queued."""
        command = ["taskset", "-c", str(_OTHER_CORE), sys.executable, "-m"]
        done = subprocess.run(
            [*command, "benchmarks.overload.generator", str(self.port)],
            cwd=REPOSITORY,
            input=orjson.dumps(asdict(load)),
            capture_output=True,
            check=True,
            timeout=load.seconds + 60,
        )
        self._wait_idle()
        return [Sent(**each) for each in orjson.loads(done.stdout)]

    def _wait_idle(self) -> None:
        def is_idle() -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as response:
                lines = response.read().decode().splitlines()
            names = ("pilotlight_gateway_waiting_requests ", "pilotlight_gateway_reservations ")
            return all(float(line.split()[1]) == 0 for line in lines if line.startswith(names))

        self.gateway.wait_until(is_idle, timeout_s=60)


@contextlib.contextmanager
def running_servers(layers: int) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-overload-")))
        model = folder / "model"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.overload.model", str(model), str(layers)],
            cwd=REPOSITORY,
            check=True,
        )
        redis_port, pod_port, port = free_port(), free_port(), free_port()
        redis_url = f"redis://127.0.0.1:{redis_port}"
        redis = _start(stack, redis_command(redis_port, folder), folder / "redis.log", _OTHER_CORE)
        redis.wait_until(lambda: b"Ready to accept" in redis.log.read_bytes(), timeout_s=10)
        specs = [
            ModelSpec(ModelName(tenant, _MODEL), model.as_uri(), format="pytorch")
            for tenant in TENANTS
        ]
        declare_models(redis_url, specs)
        program = [sys.executable, "-m"]
        connected = ["--redis-url", redis_url, "--port"]
        pod = _start(
            stack,
            [
                *program,
                "runtime",
                *connected,
                str(pod_port),
                "--name",
                "pod-a",
                "--cache-dir",
                str(folder / "cache"),
            ],
            folder / "pod.log",
            _POD_CORE,
        )
        gateway = _start(
            stack, [*program, "gateway", *connected, str(port)], folder / "gateway.log", _OTHER_CORE
        )
        for tenant in TENANTS:
            url = f"http://127.0.0.1:{port}{path_of(tenant)}"
            gateway.wait_until(partial(_serves, url), timeout_s=_START_S)
        yield Servers(port, pod, gateway)


def _serves(url: str) -> bool:
    return post(url, BODY)[0] == 200


def _start(
    stack: contextlib.ExitStack, command: Sequence[str], log: Path, core: int
) -> BenchmarkProcess:
    running = start(command, cores={core}, log=log, environment={**os.environ, **_ENVIRONMENT})
    stack.callback(running.end)
    return running
