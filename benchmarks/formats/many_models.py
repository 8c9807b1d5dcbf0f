"""Many models of scikit-learn in one MLServer, by its own multi-model serving and by a pod.

MLServer loads all of its folder at its start; the pod brings a model at its first request. CPU time
and memory of the servers' processes, not the clock.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from benchmarks.formats.servers import (
    BODY,
    ENGINE,
    KINDS,
    MLSERVER,
    MLSERVER_BIN,
    engine_flags,
    has_mlserver,
    make,
    start_mlserver,
    start_pod,
)
from benchmarks.proxy.processes import BenchmarkProcess, post
from registry.domain.model import ModelName, ModelSpec

ROUNDS: Final = 3
"""Requests to each warm model, one after another."""
START_S: Final = 600.0
_KIND: Final = KINDS[0]


@dataclass(frozen=True, slots=True)
class ManyModels:
    """One server with all of the models."""

    server: str
    models: int
    load_cpu_s: float
    """Of all loads together, without the server's own start."""
    request_cpu_s: float
    """Of a request to a warm model, on average."""
    model_bytes: float
    """Growth of memory per model."""
    errors: int


def measure(models: int) -> list[ManyModels]:
    """Empty where MLServer is not installed."""
    if not has_mlserver(_KIND):
        return []
    with tempfile.TemporaryDirectory(prefix="bench-many-models-") as name:
        folder = Path(name)
        file = folder / "trained" / _KIND.kserve_file
        trained = make(_KIND.kserve_maker, file, str(MLSERVER_BIN / "python"))
        with contextlib.ExitStack() as stack:
            alone = _alone(stack, folder / "alone", trained, models)
        with contextlib.ExitStack() as stack:
            return [alone, _by_pod(stack, folder / "pod", trained, models)]


def _alone(stack: ExitStack, folder: Path, trained: Path, models: int) -> ManyModels:
    """MLServer's memory and CPU time with one model are taken off those with all."""
    names = [f"m{number}" for number in range(models)]
    for name in names:
        place = folder / name
        place.mkdir(parents=True)
        shutil.copy(trained, place)
        settings = {
            "name": name,
            "implementation": _KIND.mlserver_class,
            "parameters": {"uri": f"./{trained.name}"},
        }
        (place / "model-settings.json").write_bytes(orjson.dumps(settings))
    first = folder.with_name("first")
    shutil.copytree(folder / names[0], first / names[0])
    with contextlib.ExitStack() as inner:
        url, one = start_mlserver(inner, first, first.with_suffix(".log"))
        _ask(url, names[:1], one)
        cpu_s, resident = one.cpu_s(), one.resident_bytes()
    url, running = start_mlserver(stack, folder, folder.with_suffix(".log"))
    _ask(url, names[-1:], running)
    load_cpu_s = running.cpu_s() - cpu_s
    request_cpu_s, errors = _rounds(url, names, running)
    grown = running.resident_bytes() - resident
    return ManyModels(
        MLSERVER, models, load_cpu_s, request_cpu_s, grown / max(1, models - 1), errors
    )


def _by_pod(stack: ExitStack, folder: Path, trained: Path, models: int) -> ManyModels:
    names = [f"m{number}" for number in range(models)]
    specs = [
        ModelSpec(ModelName("default", name), trained.parent.as_uri(), format="sklearn")
        for name in names
    ]
    _, port, pod = start_pod(stack, folder, specs, *engine_flags())
    url = f"http://127.0.0.1:{port}"
    _ask(url, names[:1], pod)
    cpu_s, resident = pod.cpu_s(), pod.resident_bytes()
    _ask(url, names[1:], pod)
    load_cpu_s = pod.cpu_s() - cpu_s
    request_cpu_s, errors = _rounds(url, names, pod)
    grown = pod.resident_bytes() - resident
    return ManyModels(ENGINE, models, load_cpu_s, request_cpu_s, grown / max(1, models - 1), errors)


def _ask(url: str, names: Sequence[str], running: BenchmarkProcess) -> None:
    """Wait until each model has answered."""
    for target in (f"{url}/v2/models/{name}/infer" for name in names):
        running.wait_until(partial(_answers, target), timeout_s=START_S)


def _answers(url: str) -> bool:
    return post(url, BODY)[0] == 200


def _rounds(url: str, names: Sequence[str], running: BenchmarkProcess) -> tuple[float, int]:
    """CPU seconds per request to warm models, and the requests that failed."""
    before_s = running.cpu_s()
    found = [
        post(f"{url}/v2/models/{name}/infer", BODY)[0] for _ in range(ROUNDS) for name in names
    ]
    errors = sum(status != 200 for status in found)
    return (running.cpu_s() - before_s) / len(found), errors


def summary(measured: Sequence[ManyModels]) -> str:
    if not measured:
        return "Many models of one MLServer: left out, run scripts/mlserver."
    lines = [
        f"Many models of scikit-learn ({measured[0].models}), one request after another:",
        "",
        "| server | CPU ms per load | CPU µs per request | KB per model | errors |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.server} | {1000 * each.load_cpu_s / max(1, each.models - 1):.1f} |"
        f" {1e6 * each.request_cpu_s:.0f} | {each.model_bytes / 1000:.0f} | {each.errors} |"
        for each in measured
    ]
    return "\n".join(lines)
