"""Starts the two systems that serve the chain: a gateway, a scheduler and a pod; and Ray Serve.

The same exported program, one process that runs it, the same requests.
"""

import http.client
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
import torch

from benchmarks.declared_models import declare_models
from benchmarks.peers import peers_python
from benchmarks.proxy.processes import BenchmarkProcess, post, start
from benchmarks.proxy.serving_systems import ray_haproxy
from registry.domain.model import ModelName, ModelSpec
from tests import servers
from tests.workflows.service.harness import HEAD, running_scheduler

FEATURES: Final = 64
ROW: Final = [0.01 * number for number in range(FEATURES)]
DIRECT: Final = orjson.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, FEATURES], "data": ROW}]}
)
OURS: Final = "Pilotlight"
RAY_DEFAULT: Final = "Ray Serve, defaults"
RAY_TUNED: Final = "Ray Serve, HAProxy and gRPC"
_START_S: Final = 300.0
_RAY_ENVIRONMENT: Final = {
    "RAY_worker_niceness": "0",  # by default 15: behind all other work of the machine
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # Where the machine is busy, Serve ends and restarts a proxy that is not ready after 5 s.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
}
_WORKFLOW: Final = """
@workflow
async def chain(count: int, x: list):
    for _ in range(count):
        x = (await model("mlp")(x=x))["y"]
    return x
"""


@dataclass(frozen=True, slots=True)
class ChainResult:
    row: list[float]
    steps_s: list[float]
    """Times from one call of the model to the next, as the code that calls it sees them."""


@dataclass(frozen=True, slots=True)
class ChainSystem:
    """A running system, and where it serves the model and the chain."""

    name: str
    connection: http.client.HTTPConnection
    direct_path: str
    chain_path: str
    processes: tuple[BenchmarkProcess, ...]
    read_result: Callable[[Mapping[str, Any]], ChainResult]

    def post(self, path: str, body: bytes) -> bytes:
        headers = {"content-type": "application/json"}
        self.connection.request("POST", path, body, headers)
        response = self.connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise RuntimeError(f"{self.name}: {path} got {response.status}: {content[:200]!r}")
        return content

    def cpu_s(self) -> float:
        return sum(process.cpu_s() for process in self.processes)


class _Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, FEATURES)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": torch.tanh(self.layer(x))}


def make_program(path: Path) -> Path:
    """The exported model, the same each time."""
    path.parent.mkdir(parents=True)
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=1, max=64)
    with warnings.catch_warnings():  # torch's own parts warn of each other
        warnings.simplefilter("ignore")
        inputs = (torch.zeros(2, FEATURES),)
        program = torch.export.export(_Network().eval(), inputs, dynamic_shapes=({0: rows},))
        torch.export.save(program, path)
    return path


def chain_body(count: int) -> bytes:
    return orjson.dumps({"count": count, "x": ROW})


def start_pilotlight(stack: ExitStack, folder: Path, program: Path) -> ChainSystem:
    redis = stack.enter_context(servers.redis_server(folder / "redis"))
    declare_models(
        redis.url, [ModelSpec(ModelName("default", "mlp"), program.parent.as_uri(), pool="bench")]
    )
    port = servers.free_port()
    gateway = stack.enter_context(
        servers.gateway(
            folder / "gateway",
            redis_url=redis.url,
            pool="bench",
            workflows_url=f"http://127.0.0.1:{port}",
        )
    )
    scheduler = stack.enter_context(
        running_scheduler(folder / "scheduler", redis.url, "bench", gateway.url, port=port)
    )
    parent = stack.enter_context(servers.forkserver())
    stack.enter_context(
        servers.pod(
            parent,
            name="pod",
            redis_url=redis.url,
            folder=folder / "pod",
            pool="bench",
            slots=8,
            threads=1,
        )
    )
    client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
    url = f"{gateway.url}/v1/workflows/chain"
    client.put(url, content=HEAD + _WORKFLOW).raise_for_status()

    def read_result(response: Mapping[str, Any]) -> ChainResult:
        run = client.get(f"{url}/runs/{response['id']}").json()
        return ChainResult(response["result"], _gaps(step["called_s"] for step in run["steps"]))

    started = (redis.process, gateway.process, scheduler.process, parent.process)
    processes = tuple(BenchmarkProcess(each, folder) for each in started if each is not None)
    return ChainSystem(
        OURS,
        _connection(stack, gateway.port),
        "/v2/models/mlp/infer",
        "/v1/workflows/chain:run",
        processes,
        read_result,
    )


def start_ray(stack: ExitStack, folder: Path, program: Path, *, tuned: bool) -> ChainSystem:
    """Ray Serve with its defaults, or with what its manual names for speed."""
    port = servers.free_port()
    environment = dict(_RAY_ENVIRONMENT)
    if tuned:
        environment |= {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", **ray_haproxy(folder)}
    command = [
        str(peers_python()),
        "-m",
        "benchmarks.composition.ray_chain",
        str(port),
        str(folder / "ray"),
        str(program),
        sysconfig.get_path("purelib"),
    ]
    cores = os.sched_getaffinity(0)
    folder.mkdir()
    process = start(command, cores=cores, log=folder / "ray.log", environment=environment)
    stack.callback(_end, process)
    chain_url = f"http://127.0.0.1:{port}/chain"
    process.wait_until(lambda: post(chain_url, chain_body(1))[0] == 200, timeout_s=_START_S)
    return ChainSystem(
        RAY_TUNED if tuned else RAY_DEFAULT,
        _connection(stack, port),
        "/model",
        "/chain",
        (process,),
        lambda response: ChainResult(response["result"], _gaps(response["called_s"])),
    )


def _end(process: BenchmarkProcess) -> None:
    """End it with its descendants. Raises RuntimeError if one is left."""
    pids = process.pids()
    process.end()
    try:
        servers.wait_until(lambda: not any(map(servers.is_alive, pids)), timeout_s=15)
    except TimeoutError as error:
        left = sorted(filter(servers.is_alive, pids))
        raise RuntimeError(f"processes of Ray are left after its end: {left}") from error


def _connection(stack: ExitStack, port: int) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    stack.callback(connection.close)
    return connection


def _gaps(called_s: Iterable[float]) -> list[float]:
    return [after - before for before, after in pairwise(called_s)]
