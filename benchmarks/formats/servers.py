"""The servers of one model: a pod, a gateway with a pod, KServe's own server, MLServer.

KServe's are read where `scripts/kubernetes/build` unpacks its Go module, MLServer in an environment
of its own (`.venv-mlserver`, made by hand); one that is missing is left out and named.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from benchmarks.formats.bare import ROW
from benchmarks.machine import REPOSITORY
from benchmarks.proxy.processes import BenchmarkProcess, post, start
from pilotlight.platform.bundled_servers import redis_command
from pilotlight.platform.processes import free_port
from registry.domain.model import ModelName, ModelSpec
from registry.redis.client import Registry

if TYPE_CHECKING:
    from contextlib import ExitStack

SERVER_CORE: Final = 0
OTHER_CORE: Final = 1
POD: Final = "Pilotlight pod"
GATEWAY: Final = "Pilotlight gateway and pod"
KSERVE: Final = "KServe's server"
MLSERVER: Final = "MLServer"
BODY: Final = orjson.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": list(ROW)}]}
)
_SOURCES: Final = Path("~/.cache/pilotlight/kubernetes/source").expanduser()
_MLSERVER_BIN: Final = REPOSITORY / ".venv-mlserver" / "bin"
_START_S: Final = 300.0
_SLOTS: Final = 64
_THREADS: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model, and what each server calls it."""

    name: str
    maker: str
    file: str
    kserve_package: str
    kserve_maker: str
    kserve_file: str
    mlserver_class: str


KINDS: Final = (
    Kind(
        "iris, scikit-learn", "skops", "model.skops", "sklearnserver", "pickle", "model.joblib",
        "mlserver_sklearn.SKLearnModel",
    ),
    Kind(
        "100 rounds of trees, XGBoost", "booster", "model.json", "xgbserver", "booster",
        "model.json", "mlserver_xgboost.XGBoostModel",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    url: str
    processes: tuple[BenchmarkProcess, ...]

    def cpu_s(self) -> float:
        return sum(each.cpu_s() for each in self.processes)


def make(maker: str, path: Path, python: str = sys.executable) -> Path:
    """A model made by a server's own interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    program = str(REPOSITORY / "benchmarks" / "formats" / "models.py")
    subprocess.run([python, program, maker, str(path)], check=True, stderr=subprocess.DEVNULL)
    return path


def start_all(stack: ExitStack, kind: Kind, folder: Path) -> tuple[list[Server], list[str]]:
    """The servers, warm, and why others are left out."""
    servers, missing = _ours(stack, kind, folder), []
    package = next(_SOURCES.glob(f"github.com_kserve_kserve@*/python/{kind.kserve_package}"), None)
    if package is None:
        missing.append(f"{KSERVE}: scripts/kubernetes/build unpacks its sources")
    else:
        servers.append(_kserve(stack, kind, folder, package))
    if (_MLSERVER_BIN / "mlserver").exists():
        servers.append(_mlserver(stack, kind, folder))
    else:
        missing.append(f"{MLSERVER}: install mlserver and its runtimes in .venv-mlserver")
    return servers, missing


def _start(
    stack: ExitStack, command: list[str], log: Path, core: int = SERVER_CORE, **environment: str
) -> BenchmarkProcess:
    running = start(
        command, cores={core}, log=log, environment={**os.environ, **_THREADS, **environment}
    )
    stack.callback(running.end)
    return running


def _warm(name: str, url: str, *processes: BenchmarkProcess) -> Server:
    processes[0].wait_until(lambda: post(url, BODY)[0] == 200, timeout_s=_START_S)
    for _ in range(100):
        post(url, BODY)
    return Server(name, url, processes)


def _ours(stack: ExitStack, kind: Kind, folder: Path) -> list[Server]:
    model = make(kind.maker, folder / "ours" / kind.file)
    redis_port, port, gateway_port = free_port(), free_port(), free_port()
    redis_url = f"redis://127.0.0.1:{redis_port}"
    redis = _start(stack, redis_command(redis_port, folder), folder / "redis.log", OTHER_CORE)
    redis.wait_until(lambda: b"Ready to accept" in redis.log.read_bytes(), timeout_s=30)
    spec = ModelSpec(ModelName("default", "m"), model.parent.as_uri())
    asyncio.run(_declare(redis_url, spec))
    command = [
        sys.executable, "-m", "runtime", "--name", "pod", "--redis-url", redis_url, "--port",
        str(port), "--slots", str(_SLOTS), "--threads", "1", "--cache-dir", str(folder / "cache"),
    ]  # fmt: skip
    pod = _start(stack, command, folder / "pod.log")
    direct = _warm(POD, f"http://127.0.0.1:{port}/v2/models/m/infer", pod)
    command = [
        sys.executable, "-m", "gateway", "--redis-url", redis_url, "--port", str(gateway_port),
    ]  # fmt: skip
    gateway = _start(stack, command, folder / "gateway.log")
    url = f"http://127.0.0.1:{gateway_port}/v2/models/m/infer"
    return [direct, _warm(GATEWAY, url, gateway, pod)]


async def _declare(redis_url: str, spec: ModelSpec) -> None:
    registry = await Registry.connect(redis_url, spec.pool)
    try:
        await registry.put_models([spec])
    finally:
        await registry.close()


def _kserve(stack: ExitStack, kind: Kind, folder: Path, package: Path) -> Server:
    model = make(kind.kserve_maker, folder / "kserve" / kind.kserve_file)
    port = free_port()
    command = [
        sys.executable, "-m", kind.kserve_package, "--model_name", "m", "--model_dir",
        str(model.parent), "--http_port", str(port), "--enable_grpc", "false",
        "--enable_latency_logging", "false",
    ]  # fmt: skip
    running = _start(stack, command, folder / "kserve.log", PYTHONPATH=str(package))
    return _warm(KSERVE, f"http://127.0.0.1:{port}/v2/models/m/infer", running)


def _mlserver(stack: ExitStack, kind: Kind, folder: Path) -> Server:
    place = folder / "mlserver"
    model = make(kind.kserve_maker, place / kind.kserve_file, str(_MLSERVER_BIN / "python"))
    ports = {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    settings = {**ports, "host": "127.0.0.1", "debug": False, "parallel_workers": 0}
    (place / "settings.json").write_bytes(orjson.dumps(settings))
    declared = {
        "name": "m", "implementation": kind.mlserver_class, "parameters": {"uri": str(model)}
    }  # fmt: skip
    (place / "model-settings.json").write_bytes(orjson.dumps(declared))
    command = [str(_MLSERVER_BIN / "mlserver"), "start", str(place)]
    running = _start(stack, command, folder / "mlserver.log")
    return _warm(MLSERVER, f"http://127.0.0.1:{ports['http_port']}/v2/models/m/infer", running)
