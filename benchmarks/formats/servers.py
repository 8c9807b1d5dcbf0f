"""The servers of one model: a pod, a gateway with a pod, KServe's server, MLServer, a pod with it.

KServe's are read where `scripts/kubernetes/build` unpacks its Go module, MLServer in an environment
of its own (`scripts/mlserver`); one that is missing is left out and named.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from benchmarks.declared_models import declare_models
from benchmarks.formats.bare import ROW
from benchmarks.formats.models import PIXELS
from benchmarks.machine import REPOSITORY
from benchmarks.proxy.processes import BenchmarkProcess, post, start
from pilotlight.platform.processes import free_port, redis_command
from registry.domain.model import ModelName, ModelSpec

SERVER_CORE: Final = 0
OTHER_CORE: Final = 1
POD: Final = "Pilotlight pod"
GATEWAY: Final = "Pilotlight gateway and pod"
KSERVE: Final = "KServe's server"
MLSERVER: Final = "MLServer"
ENGINE: Final = "Pilotlight pod with MLServer"
BODY: Final = orjson.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": list(ROW)}]}
)
IMAGE_BODY: Final = orjson.dumps(
    {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, 3, PIXELS, PIXELS],
                "data": [pixel % 100 / 100 for pixel in range(3 * PIXELS**2)],
            }
        ]
    }
)
_SOURCES: Final = Path("~/.cache/pilotlight/kubernetes/source").expanduser()
_MLSERVER: Final = Path(
    os.environ.get("PILOTLIGHT_MLSERVER", "~/.cache/pilotlight/mlserver-1.7.1")
).expanduser()
MLSERVER_BIN: Final = _MLSERVER / "bin"
_START_S: Final = 300.0
_SLOTS: Final = 64
_THREADS: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model, and what each server calls it; empty: the server does not read it."""

    name: str
    maker: str
    file: str
    kserve_package: str
    kserve_maker: str
    kserve_file: str
    mlserver_class: str
    model_format: str
    body: bytes = BODY


KINDS: Final = (
    Kind(
        "iris, scikit-learn", "skops", "model.skops", "sklearnserver", "pickle", "model.joblib",
        "mlserver_sklearn.SKLearnModel", "sklearn",
    ),
    Kind(
        "100 rounds of trees, XGBoost", "booster", "model.json", "xgbserver", "booster",
        "model.json", "mlserver_xgboost.XGBoostModel", "xgboost",
    ),
    Kind(
        "100 rounds of trees, LightGBM", "lightgbm", "model.txt", "lgbserver", "lightgbm",
        "model.bst", "mlserver_lightgbm.LightGBMModel", "lightgbm",
    ),
    Kind("MobileNetV2, ONNX", "mobilenet", "model.onnx", "", "", "", "", "onnx", IMAGE_BODY),
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
    if not kind.kserve_package:
        return servers, [f"{kind.name}: KServe has Triton for it, MLServer no runtime"]
    package = next(_SOURCES.glob(f"github.com_kserve_kserve@*/python/{kind.kserve_package}"), None)
    if package is None:
        missing.append(f"{KSERVE}: scripts/kubernetes/build unpacks its sources")
    else:
        servers.append(_kserve(stack, kind, folder, package))
    if has_mlserver(kind):
        servers.append(_mlserver(stack, kind, folder))
        servers.append(_engine(stack, kind, folder))
    else:
        runtime = kind.mlserver_class.partition(".")[0].replace("_", "-")
        missing.append(f"{MLSERVER} ({kind.name}): run scripts/mlserver {runtime}==1.7.1")
    return servers, missing


def has_mlserver(kind: Kind) -> bool:
    """Whether MLServer is installed with the runtime for the kind."""
    package = kind.mlserver_class.partition(".")[0]
    return any(_MLSERVER.glob(f"lib/python*/site-packages/{package}/__init__.py"))


def _start(
    stack: ExitStack, command: list[str], log: Path, core: int = SERVER_CORE, **environment: str
) -> BenchmarkProcess:
    running = start(
        command, cores={core}, log=log, environment={**os.environ, **_THREADS, **environment}
    )
    stack.callback(running.end)
    return running


def _warm(kind: Kind, name: str, url: str, *processes: BenchmarkProcess) -> Server:
    processes[0].wait_until(lambda: post(url, kind.body)[0] == 200, timeout_s=_START_S)
    for _ in range(100):
        post(url, kind.body)
    return Server(name, url, processes)


def _ours(stack: ExitStack, kind: Kind, folder: Path) -> list[Server]:
    model = make(kind.maker, folder / "ours" / kind.file)
    gateway_port = free_port()
    spec = ModelSpec(ModelName("default", "m"), model.parent.as_uri())
    redis_url, port, pod = start_pod(stack, folder / "ours", [spec])
    direct = _warm(kind, POD, f"http://127.0.0.1:{port}/v2/models/m/infer", pod)
    command = [
        sys.executable,
        "-m",
        "gateway",
        "--redis-url",
        redis_url,
        "--port",
        str(gateway_port),
    ]
    gateway = _start(stack, command, folder / "gateway.log")
    url = f"http://127.0.0.1:{gateway_port}/v2/models/m/infer"
    return [direct, _warm(kind, GATEWAY, url, gateway, pod)]


def start_pod(
    stack: ExitStack,
    folder: Path,
    specs: Sequence[ModelSpec],
    *flags: str,
    module: Sequence[str] = ("runtime",),
) -> tuple[str, int, BenchmarkProcess]:
    """A pod with a registry of its own: the registry's URL, the pod's port, the pod.

    `module` takes the flags of `runtime`, after arguments of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    redis_port, port = free_port(), free_port()
    redis_url = f"redis://127.0.0.1:{redis_port}"
    redis_log = folder / "redis.log"
    redis = _start(stack, redis_command(redis_port, folder), redis_log, OTHER_CORE)
    redis.wait_until(lambda: b"Ready to accept" in redis.log.read_bytes(), timeout_s=30)
    declare_models(redis_url, specs)
    command = [
        sys.executable,
        "-m",
        *module,
        "--name",
        "pod",
        "--redis-url",
        redis_url,
        "--port",
        str(port),
        "--slots",
        str(_SLOTS),
        "--threads",
        "1",
        "--cache-dir",
        str(folder / "cache"),
        "--grpc-port",
        "0",
        *flags,
    ]
    return redis_url, port, _start(stack, command, folder / "pod.log")


def engine_flags() -> tuple[str, ...]:
    """Of a pod that starts MLServer, in one process."""
    settings = {
        "HOST": "127.0.0.1",
        "HTTP_PORT": "{port}",
        "GRPC_PORT": "{grpc_port}",
        "METRICS_PORT": "{metrics_port}",
        "LOAD_MODELS_AT_STARTUP": "false",
        "PARALLEL_WORKERS": "0",
        "DEBUG": "false",
    }
    words = " ".join(f"MLSERVER_{name}={value}" for name, value in settings.items())
    command = f"/usr/bin/env {words} {MLSERVER_BIN / 'mlserver'} start {{repository}}"
    return "--engine-command", command


def _engine(stack: ExitStack, kind: Kind, folder: Path) -> Server:
    place = folder / "engine"
    python = str(MLSERVER_BIN / "python")
    model = make(kind.kserve_maker, place / "model" / kind.kserve_file, python)
    spec = ModelSpec(ModelName("default", "m"), model.parent.as_uri(), format=kind.model_format)
    _, port, pod = start_pod(stack, place, [spec], *engine_flags())
    return _warm(kind, ENGINE, f"http://127.0.0.1:{port}/v2/models/m/infer", pod)


def _kserve(stack: ExitStack, kind: Kind, folder: Path, package: Path) -> Server:
    model = make(kind.kserve_maker, folder / "kserve" / kind.kserve_file)
    port = free_port()
    command = [
        sys.executable,
        "-m",
        kind.kserve_package,
        "--model_name",
        "m",
        "--model_dir",
        str(model.parent),
        "--http_port",
        str(port),
        "--enable_grpc",
        "false",
        "--enable_latency_logging",
        "false",
    ]
    running = _start(stack, command, folder / "kserve.log", PYTHONPATH=str(package))
    return _warm(kind, KSERVE, f"http://127.0.0.1:{port}/v2/models/m/infer", running)


def _mlserver(stack: ExitStack, kind: Kind, folder: Path) -> Server:
    place = folder / "mlserver"
    model = make(kind.kserve_maker, place / kind.kserve_file, str(MLSERVER_BIN / "python"))
    declared = {
        "name": "m",
        "implementation": kind.mlserver_class,
        "parameters": {"uri": str(model)},
    }
    (place / "model-settings.json").write_bytes(orjson.dumps(declared))
    url, running = start_mlserver(stack, place, folder / "mlserver.log")
    return _warm(kind, MLSERVER, f"{url}/v2/models/m/infer", running)


def start_mlserver(stack: ExitStack, place: Path, log: Path) -> tuple[str, BenchmarkProcess]:
    """MLServer with all models of a folder; its URL."""
    ports = {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    settings = {**ports, "host": "127.0.0.1", "debug": False, "parallel_workers": 0}
    (place / "settings.json").write_bytes(orjson.dumps(settings))
    command = [str(MLSERVER_BIN / "mlserver"), "start", str(place)]
    return f"http://127.0.0.1:{ports['http_port']}", _start(stack, command, log)
