"""1,000 models of 1 MB in one pod: what a warm one takes, and how long it loads from disk.

Memory is private resident memory (`smaps_rollup`), less what onnxruntime alone takes for the same
files. Load times are the pod's own (`server-timing`); CPU time beside them holds on a busy machine.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import numpy as np
import orjson

from benchmarks.formats.servers import start_pod
from benchmarks.machine import REPOSITORY
from benchmarks.marks import Mark
from benchmarks.proxy.processes import BenchmarkProcess
from registry.domain.model import ModelName, ModelSpec

WIDTH: Final = 512
"""Of the matrix of a model: 1 MiB in 32 bits."""
BUDGET_BYTES: Final = 4 * 1000**3
WANTED_LOAD_MS: Final = 20.0
BODY: Final = orjson.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0] * WIDTH}]}
)
_START_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    """The first request to a model."""

    start: str
    """The tier that it was loaded from."""
    load_ms: float
    request_ms: float
    """The whole request, at the client."""


@dataclass(frozen=True, slots=True)
class Density:
    models: int
    warm: int
    file_bytes: int
    pod_bytes: float
    """Growth of the pod's memory per warm model."""
    library_bytes: float
    """The same of onnxruntime alone."""
    load_cpu_ms: float
    """CPU time of the pod per load, with its request."""
    library_cpu_ms: float
    loads: list[Load]
    errors: int

    @property
    def load_p50_ms(self) -> float:
        return float(np.percentile([each.load_ms for each in self.loads], 50))

    @property
    def overhead_bytes(self) -> float:
        """Of a warm model, over the library's own."""
        return self.pod_bytes - self.library_bytes


def measure(*, models: int, warm: int) -> Density:
    """A first pod brings all files to the disk tier; a second one loads `warm` of them from it."""
    with tempfile.TemporaryDirectory(prefix="bench-density-") as name:
        folder = Path(name)
        folders = make_models(folder / "models", models)
        specs = [
            ModelSpec(ModelName("default", each.name), each.as_uri(), format="onnx")
            for each in folders
        ]
        cache = folder / "cache"
        with contextlib.ExitStack() as stack:
            client, _ = _pod(stack, folder / "first", specs, cache)
            brought = [_ask(client, each.name) for each in folders]
        with contextlib.ExitStack() as stack:
            client, pod = _pod(stack, folder / "second", specs, cache)
            first = _ask(client, folders[0].name)  # imports the library
            memory, cpu_s = private_bytes(pod.process.pid), pod.cpu_s()
            found = [_ask(client, each.name) for each in folders[1:warm]]
            grown, cpu_s = private_bytes(pod.process.pid) - memory, pod.cpu_s() - cpu_s
        bare = _bare(folders[:warm])
        loads = [each for each in found if each is not None]
        missing = sum(each is None for each in (*brought, first, *found))
        file_bytes = (folders[0] / "model.onnx").stat().st_size
        count = max(1, len(loads))
        return Density(
            models,
            warm,
            file_bytes,
            grown / count,
            bare["bytes"],
            1000 * cpu_s / count,
            bare["cpu_ms"],
            loads,
            missing,
        )


def make_models(folder: Path, count: int) -> list[Path]:
    """Folders with a `model.onnx` each, a matrix of its own numbers times a row."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.full((WIDTH, WIDTH), np.pi, np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "density",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(weights, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert isinstance(made, onnx.ModelProto)
    before, _, after = made.SerializeToString().partition(weights.tobytes())
    draw = np.random.default_rng(0)
    folders = [folder / f"m{number}" for number in range(count)]
    for place in folders:
        place.mkdir(parents=True)
        own = draw.standard_normal((WIDTH, WIDTH), np.float32).tobytes()
        (place / "model.onnx").write_bytes(before + own + after)
    return folders


def _pod(
    stack: ExitStack, folder: Path, specs: Sequence[ModelSpec], cache: Path
) -> tuple[httpx.Client, BenchmarkProcess]:
    flags = ("--memory-bytes", str(BUDGET_BYTES), "--cache-dir", str(cache))
    _, port, pod = start_pod(stack, folder, specs, *flags)
    url = f"http://127.0.0.1:{port}"
    client = stack.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=_START_S))
    pod.wait_until(lambda: _is_live(client), timeout_s=_START_S)
    return client, pod


def _is_live(client: httpx.Client) -> bool:
    try:
        return client.get("/v2/health/live").status_code == 200
    except httpx.TransportError:
        return False


def _ask(client: httpx.Client, name: str) -> Load | None:
    """None if the request failed."""
    response = client.post(f"/v2/models/{name}/infer", content=BODY)
    if response.status_code != 200:
        return None
    timings = dict(
        part.strip().split(";dur=") for part in response.headers["server-timing"].split(",")
    )
    return Load(
        response.headers["x-pilotlight-start"],
        float(timings.get("load", 0.0)),
        response.elapsed.total_seconds() * 1000,
    )


def private_bytes(pid: int) -> int:
    """Memory that the process shares with no other, in its `smaps_rollup`."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def _bare(folders: Sequence[Path]) -> dict[str, float]:
    """Bytes and CPU milliseconds per model of onnxruntime alone, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.formats.bare_density", *map(str, folders)]
    done = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    found: dict[str, float] = orjson.loads(done.stdout)
    return found


def summary(density: Density) -> str:
    times = [each.load_ms for each in density.loads]
    requests = [each.request_ms for each in density.loads]
    starts = ", ".join(sorted({each.start for each in density.loads}))
    return "\n".join(
        [
            f"{density.models} models of {density.file_bytes / 1e6:.2f} MB (ONNX), a budget of"
            f" {BUDGET_BYTES / 1e9:g} GB, {density.warm} of them warm (loaded from: {starts}):",
            "",
            "| | pod | onnxruntime alone |",
            "|---|---|---|",
            f"| KB per warm model | {density.pod_bytes / 1000:.0f} |"
            f" {density.library_bytes / 1000:.0f} |",
            f"| CPU ms per load | {density.load_cpu_ms:.1f} | {density.library_cpu_ms:.1f} |",
            f"| load ms, p50; p99 | {np.percentile(times, 50):.1f}; {np.percentile(times, 99):.1f}"
            " | - |",
            f"| first request ms, p50; p99 | {np.percentile(requests, 50):.1f};"
            f" {np.percentile(requests, 99):.1f} | - |",
            "",
            f"{density.errors} errors; a warm model takes {density.overhead_bytes / 1000:.0f} KB"
            " over the library's own.",
        ]
    )


def marks(density: Density) -> Iterator[Mark]:
    p50_ms = density.load_p50_ms
    yield Mark(
        f"load from disk, p50 below {WANTED_LOAD_MS:g} ms",
        f"{p50_ms:.1f} ms",
        p50_ms < WANTED_LOAD_MS,
    )
    yield Mark("no request fails", f"{density.errors} failed", density.errors == 0)
