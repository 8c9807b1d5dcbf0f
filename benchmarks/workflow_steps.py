"""Time that a warm step of a workflow takes more than the same request sent to the gateway.

A real gateway, scheduler and runner; pods that answer at once. Runs of several steps, one after the
other, alternate with direct requests. The CPU time of scheduler and runner is measured as well: it
does not depend on other work of the machine.
"""

import http.client
import os
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from benchmarks.machine import machine_facts, save
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness
from tests.workflows.service.harness import HEAD, Scheduler, running_scheduler
from workflows.values import infer_body, text_tensor

ROUNDS: Final = 60
STEPS: Final = 10
WARM_UP: Final = 5
MARKS: Final = "added: p50 3 ms, p99 10 ms"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_WORKFLOW: Final = """
@workflow
async def chain(count: int):
    text = "a"
    for _ in range(count):
        text = (await model("writer")(text))["text"]
    return text
"""


def main() -> None:
    machine = machine_facts()
    print(f"{machine.line()}\n")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        harness, scheduler = _start(Path(folder), stack)
        direct = http.client.HTTPConnection("127.0.0.1", harness.gateway.port)
        stack.callback(direct.close)
        direct_s: list[float] = []
        steps_s: list[float] = []
        for number in range(WARM_UP + ROUNDS):
            if number == WARM_UP:
                direct_s.clear()
                steps_s.clear()
                before_s = _cpu_s(scheduler)
            direct_s += [_direct_s(direct) for _ in range(STEPS)]
            steps_s += _steps_s(harness)
        cpu_ms = 1e3 * (_cpu_s(scheduler) - before_s) / (ROUNDS * (STEPS + 1))
    alone, step = _quantiles_ms(direct_s), _quantiles_ms(steps_s)
    print("| | p50 ms | p99 ms |\n|---|---|---|")
    print(f"| direct request | {alone[0]:.2f} | {alone[1]:.2f} |")
    print(f"| warm step | {step[0]:.2f} | {step[1]:.2f} |")
    print(f"| added ({MARKS}) | {step[0] - alone[0]:.2f} | {step[1] - alone[1]:.2f} |")
    print(f"\nCPU of scheduler and runner: {cpu_ms:.2f} ms per step")
    samples = {"direct_s": direct_s, "steps_s": steps_s, "cpu_ms": cpu_ms}
    settings = {"rounds": ROUNDS, "steps": STEPS}
    print(f"\nsamples: {save('workflow-steps', machine, settings, samples)}")


def _start(folder: Path, stack: ExitStack) -> tuple[GatewayHarness, Scheduler]:
    redis = stack.enter_context(servers.redis_server(folder / "redis"))
    client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
    port = servers.free_port()
    gateway = stack.enter_context(
        servers.gateway(
            folder / "gateway",
            redis_url=redis.url,
            pool="bench",
            workflows_url=f"http://127.0.0.1:{port}",
        )
    )
    harness = GatewayHarness(redis.url, "bench", gateway, client, stack)
    scheduler = stack.enter_context(
        running_scheduler(folder / "scheduler", redis.url, "bench", gateway.url, port=port)
    )
    spec = harness.declare("writer")
    harness.start_pods("pod-a", "pod-b", warm=spec)
    response = client.put(f"{gateway.url}/v1/workflows/chain", content=HEAD + _WORKFLOW)
    response.raise_for_status()
    return harness, scheduler


def _direct_s(connection: http.client.HTTPConnection) -> float:
    body = infer_body([text_tensor("text", "a")])
    began_s = time.perf_counter()
    connection.request("POST", "/v2/models/writer/infer", body.content, dict(body.headers))
    response = connection.getresponse()
    content = response.read()
    taken_s = time.perf_counter() - began_s
    if response.status != 200:
        raise RuntimeError(f"a direct request got {response.status}: {content[:200]!r}")
    return taken_s


def _steps_s(harness: GatewayHarness) -> list[float]:
    """Times from one call to the next one of a run, whose code awaits each step."""
    url = f"{harness.gateway.url}/v1/workflows/chain"
    response = harness.client.post(f"{url}:run", json={"count": STEPS + 1})
    response.raise_for_status()
    document: dict[str, Any] = harness.client.get(f"{url}/runs/{response.json()['id']}").json()
    called_s = [each["called_s"] for each in document["steps"]]
    return [after - before for before, after in pairwise(called_s)]


def _cpu_s(scheduler: Scheduler) -> float:
    """CPU time of the scheduler and its runners."""
    runners = re.findall(r"runner started .*?pid=(\d+)", scheduler.log_file.read_text())
    pids = [scheduler.process.pid, *map(int, runners)]
    return sum(map(_process_cpu_s, filter(servers.is_alive, pids)))


def _process_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _quantiles_ms(values_s: Sequence[float]) -> tuple[float, float]:
    p50, p99 = np.quantile(values_s, [0.5, 0.99]).tolist()
    return 1e3 * p50, 1e3 * p99


if __name__ == "__main__":
    main()
