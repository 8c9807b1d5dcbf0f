"""CPU time of a pod per small request, by thread: event loop, request threads, device.

`python -m benchmarks.pod_cpu`. CPU time, not the clock: it holds on a busy machine. The networks
are so small that the device's thread does what it does beside a GPU: Python and torch's dispatch.
"""

import argparse
import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import orjson

from benchmarks.formats.servers import OTHER_CORE, start_pod
from benchmarks.machine import machine_facts, save
from benchmarks.proxy.generator import load
from benchmarks.proxy.processes import BenchmarkProcess, post
from pilotlight.sample_models.make_model import make_model
from registry.domain.model import ModelName, ModelSpec

LOOP: Final = "MainThread"
KINDS: Final = (LOOP, "request", "device", "other")
_CLIENTS: Final = (1, 16)
_TEXT: Final = "The quick brown fox jumps over the lazy dog"
_TENSOR: Final = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [_TEXT]}
BODIES: Final = {
    "v1/models/m:predict": orjson.dumps({"instances": [_TEXT]}),
    "v2/models/m/infer": orjson.dumps({"inputs": [_TENSOR]}),
}


@dataclass(frozen=True, slots=True)
class PodCpu:
    """One burst."""

    path: str
    clients: int
    requests: int
    errors: int
    cpu_s: dict[str, float]
    """By the kind of thread, without what the pod uses in that time with no request."""

    def us(self, kind: str) -> float:
        """Of a request."""
        return 1e6 * self.cpu_s.get(kind, 0.0) / max(1, self.requests)


def measure(*, repeats: int, seconds: float) -> list[PodCpu]:
    """Bursts of all protocols and numbers of clients in turn."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-pod-cpu-")))
        model = make_model("tiny-bert", folder / "tiny-bert")
        spec = ModelSpec(ModelName("default", "m"), model.as_uri())
        file = folder / "threads.json"
        _, port, pod = start_pod(
            stack, folder / "pod", [spec], module=("benchmarks.pod_threads", str(file))
        )
        url = f"http://127.0.0.1:{port}"
        for path, body in BODIES.items():
            pod.wait_until(partial(answers, f"{url}/{path}", body), timeout_s=600)
        idle = _idle(pod, file, seconds)
        return [
            _burst(pod, file, f"{url}/{path}", path, clients, seconds, idle)
            for number in range(repeats + 1)
            for path in BODIES
            for clients in _CLIENTS
        ][len(BODIES) * len(_CLIENTS) :]


def answers(url: str, body: bytes) -> bool:
    return post(url, body)[0] == 200


def _burst(
    pod: BenchmarkProcess,
    file: Path,
    url: str,
    path: str,
    clients: int,
    seconds: float,
    idle: Mapping[str, float],
) -> PodCpu:
    before, begun_s = _threads(pod, file), time.monotonic()
    seen = load(
        url, BODIES[path], clients=clients, seconds=seconds, core=OTHER_CORE, own_client=True
    )
    spent, took_s = _spent(before, _threads(pod, file)), time.monotonic() - begun_s
    of_requests = {kind: cpu_s - idle[kind] * took_s for kind, cpu_s in spent.items()}
    return PodCpu(path, clients, seen.requests, seen.errors, of_requests)


def _idle(pod: BenchmarkProcess, file: Path, seconds: float) -> dict[str, float]:
    """CPU seconds per second without requests, by the kind of thread."""
    before, begun_s = _threads(pod, file), time.monotonic()
    time.sleep(seconds)
    spent, took_s = _spent(before, _threads(pod, file)), time.monotonic() - begun_s
    return {kind: cpu_s / took_s for kind, cpu_s in spent.items()}


def _spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    spent: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    for kind, cpu_s in after.items():
        known = kind if kind in spent else "other"
        spent[known] += cpu_s - before.get(kind, 0.0)
    return spent


def _threads(pod: BenchmarkProcess, file: Path) -> dict[str, float]:
    file.unlink(missing_ok=True)
    os.kill(pod.process.pid, signal.SIGUSR1)
    pod.wait_until(file.exists, timeout_s=60)
    found: dict[str, float] = json.loads(file.read_text())
    return found


def summary(bursts: Sequence[PodCpu]) -> str:
    """Medians in Markdown."""
    lines = [
        "| request | clients | CPU µs per request | event loop | request threads | device's thread"
        " | other |",
        "|---|---|---|---|---|---|---|",
    ]
    for path, clients in dict.fromkeys((each.path, each.clients) for each in bursts):
        mine = [each for each in bursts if (each.path, each.clients) == (path, clients)]
        totals = [sum(each.us(kind) for kind in KINDS) for each in mine]
        cells = [f"{median(each.us(kind) for each in mine):.0f}" for kind in KINDS]
        spread = f"{median(totals):.0f} ({min(totals):.0f} to {max(totals):.0f})"
        lines.append(f"| {path} | {clients} | {spread} | {' | '.join(cells)} |")
    errors = sum(each.errors for each in bursts)
    return "\n".join([*lines, "", f"{errors} errors in {sum(each.requests for each in bursts)}."])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pod_cpu", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    machine = machine_facts()
    bursts = measure(repeats=arguments.repeats, seconds=arguments.seconds)
    print(f"{machine.line()}\n\n{summary(bursts)}")
    settings = {"repeats": arguments.repeats, "seconds": arguments.seconds}
    save("pod-cpu", machine, settings, [asdict(each) for each in bursts])


if __name__ == "__main__":
    main()
