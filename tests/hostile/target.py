"""What the requests are sent to, probed, on loopback: a gateway and a pod with small limits, and a
scheduler of workflows."""

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import grpc
import httpx

from registry.domain.application import AccuracyProfile, ApplicationSpec
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Task
from registry.inference_service.graph_reader import read_graph
from registry.redis.client import Registry
from registry.redis.workflow_log import WorkflowLog
from tests import servers
from tests.hostile import platform_objects
from tests.hostile.channels import Hostile
from tests.hostile.grpc_calls import GrpcCall
from tests.hostile.heads import HttpRequest
from tests.hostile.loop_probe import Longest, LoopProbe
from tests.hostile.platform_requests import APPLICATION, GRAPH, WORKFLOW, WORKFLOW_SOURCE
from tests.registry.redis.clients import act
from tests.runtime import rpc
from tests.tiny_models import make_model
from tests.workflows.service.harness import running_scheduler

MIB: Final = 1 << 20
RESPONSE_TIMEOUT_S: Final = 30.0
WAIT_S: Final = 0.02
"""For a response to bytes that need not be a whole request."""
GATEWAY_SETTINGS: Final[dict[str, Any]] = {
    "max_body_bytes": 4 * MIB,
    "held_body_bytes": 16 * MIB,
    "body_timeout": 2.0,
    "request_timeout": 20.0,
}
POD_SETTINGS: Final[dict[str, Any]] = {
    "slots": 8,
    "max_body_bytes": 4 * MIB,
    "generation_max_tokens": 8,
    "inference_timeout": 20.0,
    "lease_ttl": 30.0,
}
GATEWAY_MEMORY: Final = 16 * MIB + 96 * MIB
"""Beyond its resident memory at the start: bodies, explanations, caches, connections."""
SCHEDULER_MEMORY: Final = GATEWAY_MEMORY
POD_MEMORY: Final = 750 * MIB
"""Beyond that of the warm pod: one image of 50 million pixels and its copies in colour; one of 36
million took 528 MiB."""
_TASKS: Final = {"embedder": Task.TEXT_EMBEDDING}
_SOURCES: Final = {
    "text": "tiny-bert", "embedder": "tiny-bert", "image": "tiny-vit", "chat": "tiny-gpt2",
    "t5": "tiny-t5", "rows": "tiny-program",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What happened to one request."""

    status: str
    """HTTP status or gRPC code; `closed`, `waiting` or `timeout` without a response."""
    reason: str = ""
    body: bytes = b""


@dataclass
class Process:
    """The gateway, or the pod."""

    name: str
    pid: int
    log_file: Path
    memory_limit: int
    probe: LoopProbe
    read_bytes: int = 0
    """Of the log."""

    def new_log(self) -> str:
        with contextlib.suppress(FileNotFoundError), self.log_file.open("rb") as file:
            file.seek(self.read_bytes)
            content = file.read()
            self.read_bytes += len(content)
            return content.decode("utf-8", "replace")
        return ""

    def is_alive(self) -> bool:
        return servers.is_alive(self.pid)

    def memory_bytes(self, field_name: str = "VmRSS") -> int:
        """Resident bytes; `VmHWM`: the most since the last reset."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field_name))

    def reset_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


@dataclass
class Target:
    gateway: Process
    pod: Process
    scheduler: Process
    gateway_port: int
    pod_port: int
    grpc_port: int
    channel: grpc.Channel = field(repr=False)

    @property
    def processes(self) -> tuple[Process, ...]:
        return self.gateway, self.pod, self.scheduler

    def send(self, request: Hostile) -> Outcome:
        if isinstance(request, GrpcCall):
            return self._call(request)
        try:
            return self._exchange(request)
        except (ConnectionError, http.client.HTTPException) as error:
            return Outcome("closed", repr(error)[:100])

    def _call(self, call: GrpcCall) -> Outcome:
        method = self.channel.unary_unary(f"/inference.GRPCInferenceService/{call.method}")
        try:
            method(call.content, timeout=RESPONSE_TIMEOUT_S, metadata=list(call.metadata))
        except grpc.RpcError as error:
            return Outcome(error.code().name, str(error.details())[:200])
        except ValueError as error:  # refused by the client's own library
            return Outcome("unsent", str(error)[:100])
        return Outcome("OK")

    def _exchange(self, request: HttpRequest) -> Outcome:
        port = self.pod_port if request.to_pod else self.gateway_port
        timeout_s = RESPONSE_TIMEOUT_S if request.is_whole else WAIT_S
        with socket.create_connection(
            ("127.0.0.1", port), timeout=RESPONSE_TIMEOUT_S
        ) as connection:
            connection.sendall(request.content)
            connection.settimeout(timeout_s)
            response = http.client.HTTPResponse(connection)
            try:
                response.begin()
                connection.settimeout(RESPONSE_TIMEOUT_S)
                body = _read(request, response)
            except TimeoutError:
                return Outcome("timeout" if request.is_whole else "waiting")
            finally:
                response.close()
            reason = response.headers.get("x-pilotlight-reason", "")
            not_executed = response.headers.get("x-pilotlight-not-executed", "")
            return Outcome(str(response.status), reason or not_executed, body)

    def longest_turn(self) -> Longest:
        time.sleep(0.005)  # the probe's callback runs after the request's own
        read = [process.probe.read() for process in self.processes]
        return Longest(max(each.loop_s for each in read), max(each.lock_s for each in read))

    def reset_probes(self) -> None:
        for process in self.processes:
            process.probe.reset()


@contextlib.contextmanager
def running_target(folder: Path) -> Iterator[Target]:
    """A gateway and a pod that is warm for all models."""
    probes = folder / "probes"
    probes.mkdir(parents=True)
    probed = ("tests.hostile.loop_probe", str(probes))
    environment = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with ExitStack() as stack:
        redis = stack.enter_context(servers.redis_server(folder / "redis"))
        parent = stack.enter_context(
            servers.forkserver(environment, wait=False, program=(*probed, "runtime.forkserver"))
        )
        specs = _model_specs(folder / "models")
        act(redis.url, "default", lambda registry: _declare(registry, specs))
        scheduler_port = servers.free_port()
        gateway = stack.enter_context(
            servers.gateway(
                folder,
                redis_url=redis.url,
                program=(*probed, "gateway"),
                workflows_url=f"http://127.0.0.1:{scheduler_port}",
                **GATEWAY_SETTINGS,
            )
        )
        scheduler = stack.enter_context(
            running_scheduler(
                folder / "scheduler",
                redis.url,
                "default",
                gateway.url,
                port=scheduler_port,
                program=(*probed, "workflows"),
            )
        )
        parent.wait_event(ready=True)
        grpc_port = servers.free_port()
        pod = stack.enter_context(
            servers.pod(
                parent,
                name="pod-a",
                redis_url=redis.url,
                folder=folder / "pod",
                grpc_port=grpc_port,
                **POD_SETTINGS,
            )
        )
        channel = stack.enter_context(rpc.channel(grpc_port))
        deployed = f"{gateway.url}/v1/workflows/{WORKFLOW}"
        httpx.put(deployed, content=WORKFLOW_SOURCE, timeout=60, trust_env=False).raise_for_status()
        yield Target(
            Process(
                "gateway",
                gateway.process.pid,
                gateway.log_file,
                GATEWAY_MEMORY,
                LoopProbe(probes, gateway.process.pid),
            ),
            Process("pod", pod.pid, pod.folder / "pod.log", POD_MEMORY, LoopProbe(probes, pod.pid)),
            Process(
                "scheduler",
                scheduler.process.pid,
                scheduler.log_file,
                SCHEDULER_MEMORY,
                LoopProbe(probes, scheduler.process.pid),
            ),
            gateway.port,
            pod.port,
            grpc_port,
            channel,
        )


def _model_specs(folder: Path) -> list[ModelSpec]:
    """One model of each kind, and the variants of the application."""
    models = {
        name: ModelSpec(
            ModelName("default", name),
            make_model(source, folder / name).as_uri(),
            task=_TASKS.get(name),
        )
        for name, source in _SOURCES.items()
    }
    policy = ModelPolicy(application=APPLICATION)
    variants = [
        replace(models["text"], name=ModelName("default", f"{APPLICATION}-{each}"), policy=policy)
        for each in "ab"
    ]
    return [*models.values(), *variants]


async def _declare(registry: Registry, specs: Sequence[ModelSpec]) -> None:
    await registry.put_models(specs)
    application = ApplicationSpec(ModelName("default", APPLICATION), ("LABEL_0", "LABEL_1"))
    await registry.put_applications([application])
    for spec in specs:
        if spec.policy.application is not None:
            profile = AccuracyProfile(spec.key, application.classes, ((9, 1), (1, 9)))
            await registry.put_accuracy(profile)
    graph = read_graph({**platform_objects.GRAPH, "metadata": {"name": GRAPH}}, "target")
    await WorkflowLog(registry).put_workflow(graph.name, graph.definition())


def _read(request: HttpRequest, response: http.client.HTTPResponse) -> bytes:
    """The body; of the console's events, which do not end, the first."""
    if request.content.startswith(b"HEAD"):
        return b""
    if b" /console/events" in request.content[:30] and response.status == 200:
        return response.read1(10_000)
    return response.read(100_000)
