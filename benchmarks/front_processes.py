"""Requests per second of a pod with 0, 1, 2 front processes, and the CPU time of its processes.

`python -m benchmarks.front_processes`. Pods and client share all cores; bursts of all pods take
turns. The CPU time of the device process bounds what fronts can bring where there are cores enough:
one core holds one second of it.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import orjson

from benchmarks.formats.servers import OTHER_CORE, SERVER_CORE, start_pod
from benchmarks.machine import machine_facts, save
from benchmarks.proxy.generator import load
from benchmarks.proxy.processes import post
from pilotlight.sample_models.make_model import make_model
from registry.domain.model import ModelName, ModelSpec, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.proxy.processes import BenchmarkProcess

FRONTS: Final = (0, 1, 2)
CLIENTS: Final = 16
_TEXT: Final = "The quick brown fox jumps over the lazy dog"
_TEXTS: Final = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [_TEXT]}
_LONG: Final = {**_TEXTS, "data": [" ".join([_TEXT] * 11)]}
BODIES: Final = {
    "sentence, V2": ("classifier", orjson.dumps({"inputs": [_TEXTS]})),
    "100 words, V2": ("embedder", orjson.dumps({"inputs": [_LONG]})),
}


@dataclass(frozen=True, slots=True)
class Burst:
    request: str
    fronts: int
    requests: int
    errors: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    device_process_us: float
    """CPU time per request."""
    fronts_us: float
    client_us: float


@dataclass(frozen=True, slots=True)
class _Pod:
    fronts: int
    url: str
    process: BenchmarkProcess


def measure(*, repeats: int, seconds: float) -> list[Burst]:
    """Bursts of all requests and pods in turn; the first round only warms up."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-fronts-")))
        uri = make_model("tiny-bert", folder / "tiny-bert").as_uri()
        specs = [
            ModelSpec(ModelName("default", "classifier"), uri),
            ModelSpec(ModelName("default", "embedder"), uri, task=Task.TEXT_EMBEDDING),
        ]
        pods = [_start(stack, folder, specs, fronts) for fronts in FRONTS]
        bursts = [
            _burst(pod, request, seconds)
            for _ in range(repeats + 1)
            for request in BODIES
            for pod in pods
        ]
        return bursts[len(BODIES) * len(FRONTS) :]


def _start(
    stack: contextlib.ExitStack, folder: Path, specs: Sequence[ModelSpec], fronts: int
) -> _Pod:
    _, port, process = start_pod(
        stack,
        folder / str(fronts),
        specs,
        "--front-processes",
        str(fronts),
        cores=(SERVER_CORE, OTHER_CORE),
    )
    pod = _Pod(fronts, f"http://127.0.0.1:{port}", process)
    for model, body in BODIES.values():
        process.wait_until(partial(_answers, _url(pod, model), body), timeout_s=600)
    return pod


def _url(pod: _Pod, model: str) -> str:
    return f"{pod.url}/v2/models/{model}/infer"


def _answers(url: str, body: bytes) -> bool:
    return post(url, body)[0] == 200


def _burst(pod: _Pod, request: str, seconds: float) -> Burst:
    model, body = BODIES[request]
    own_s, all_s = pod.process.own_cpu_s(), pod.process.cpu_s()
    seen = load(
        _url(pod, model),
        body,
        clients=CLIENTS,
        seconds=seconds,
        core=None,
        own_client=True,
    )
    own_s, all_s = pod.process.own_cpu_s() - own_s, pod.process.cpu_s() - all_s
    of_request = 1e6 / max(1, seen.requests)
    return Burst(
        request,
        pod.fronts,
        seen.requests,
        seen.errors,
        seen.requests_per_s,
        seen.p50_ms,
        seen.p99_ms,
        own_s * of_request,
        (all_s - own_s) * of_request,
        seen.generator_cpu_s * of_request,
    )


def summary(bursts: Sequence[Burst]) -> str:
    """Medians in Markdown."""
    lines = [
        "| request | fronts | requests/s | p50, p99 ms | CPU µs per request: device process"
        " | fronts | client |",
        "|---|---|---|---|---|---|---|",
    ]
    for request, fronts in dict.fromkeys((each.request, each.fronts) for each in bursts):
        mine = [each for each in bursts if (each.request, each.fronts) == (request, fronts)]
        rates = [each.requests_per_s for each in mine]
        of_device, of_fronts, of_client, p50, p99 = (
            median(getattr(each, name) for each in mine)
            for name in ("device_process_us", "fronts_us", "client_us", "p50_ms", "p99_ms")
        )
        lines.append(
            f"| {request} | {fronts} | {median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"
            f" | {p50:.1f}, {p99:.1f} | {of_device:.0f} | {of_fronts:.0f} | {of_client:.0f} |"
        )
    errors = sum(each.errors for each in bursts)
    return "\n".join([*lines, "", f"{errors} errors in {sum(each.requests for each in bursts)}."])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.front_processes", description=__doc__
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    machine = machine_facts()
    bursts = measure(repeats=arguments.repeats, seconds=arguments.seconds)
    print(f"{machine.line()}\n\n{summary(bursts)}")
    settings = {"repeats": arguments.repeats, "seconds": arguments.seconds}
    save("front-processes", machine, settings, [asdict(each) for each in bursts])


if __name__ == "__main__":
    main()
