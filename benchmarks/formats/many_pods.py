"""10,000 declared models on a platform of 8 pods: zipf requests through the gateway.

A platform of its own on loopback, bounded in time: every request that the gateway does not answer
with 200 counts as failed. Fewer pods where memory or cores are short, and said so.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import orjson

from benchmarks.declared_models import declare_models
from benchmarks.machine import REPOSITORY
from benchmarks.marks import Mark
from registry.domain.model import ModelName, ModelSpec
from tests.tabular_models import make_onnx

PODS: Final = 8
POD_BYTES: Final = 700 * 1024**2
"""Memory that a pod with torch needs beside what the pods share, seen on Linux."""
CLIENTS: Final = 8
EXPONENT: Final = 1.0
"""Of the zipf distribution of requests over models."""
BODY: Final = orjson.dumps({"instances": [[6.8, 2.8, 4.8, 1.4]]})
_START_S: Final = 900.0
_REQUEST_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    start: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ManyPods:
    models: int
    pods: int
    seconds: float
    declared_s: float
    answers: list[Answer]

    @property
    def failed(self) -> int:
        return sum(each.status != 200 for each in self.answers)


def measure(*, models: int, seconds: float, seed: int) -> ManyPods:
    pods = max(1, min(PODS, _available_bytes() // POD_BYTES))
    with tempfile.TemporaryDirectory(prefix="bench-many-pods-") as name:
        folder = Path(name)
        (folder / "iris").mkdir()
        uri = make_onnx(folder / "iris").as_uri()
        specs = [
            ModelSpec(ModelName("default", f"m{number}"), uri, format="onnx")
            for number in range(models)
        ]
        with _platform(folder, pods) as state:
            begun_s = time.monotonic()
            declare_models(state["redis_url"], specs)
            declared_s = time.monotonic() - begun_s
            answers = _requests(state["gateway"], models=models, seconds=seconds, seed=seed)
    return ManyPods(models, pods, seconds, declared_s, answers)


def _available_bytes() -> int:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


@contextmanager
def _platform(folder: Path, pods: int) -> Iterator[Mapping[str, Any]]:
    """The contents of its `platform.json`."""
    command = [sys.executable, "-P", "-m", "pilotlight"]
    home = ["--home", str(folder / "home")]
    flags = ["--pods", str(pods), "--port", "0", "--no-s3", "--detach", *home]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        subprocess.run(
            [*command, "up", *flags],
            check=True,
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.DEVNULL,
            timeout=_START_S,
        )
        yield json.loads((folder / "home" / "platform.json").read_text())
    finally:
        subprocess.run(
            [*command, "down", *home], check=False, cwd=REPOSITORY, stdout=subprocess.DEVNULL
        )


def _requests(gateway: str, *, models: int, seconds: float, seed: int) -> list[Answer]:
    """Of `CLIENTS` clients, one after another each, until the time is over."""
    weights = 1.0 / np.arange(1, models + 1) ** EXPONENT
    weights /= weights.sum()
    until_s = time.monotonic() + seconds

    def client(number: int) -> list[Answer]:
        draw = np.random.default_rng([seed, number])
        answers = []
        with httpx.Client(base_url=gateway, trust_env=False, timeout=_REQUEST_S) as connection:
            while time.monotonic() < until_s:
                answers.append(_ask(connection, int(draw.choice(models, p=weights))))
        return answers

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [each for answers in pool.map(client, range(CLIENTS)) for each in answers]


def _ask(client: httpx.Client, model: int) -> Answer:
    """Status 0: no response."""
    begun_s = time.monotonic()
    try:
        found = client.post(f"/v1/models/m{model}:predict", content=BODY)
    except httpx.TransportError:
        return Answer(0, "-", time.monotonic() - begun_s)
    start = found.headers.get("x-pilotlight-start", "-")
    return Answer(found.status_code, start, time.monotonic() - begun_s)


def summary(measured: ManyPods) -> str:
    starts = Counter(each.start for each in measured.answers)
    count = len(measured.answers)
    lines = [
        f"{measured.models} declared models (declared in {measured.declared_s:.1f} s), zipf with"
        f" exponent {EXPONENT:g}, {measured.pods} pods, {CLIENTS} clients for"
        f" {measured.seconds:g} s: {count} requests, {measured.failed} failed.",
        "",
        "| start | requests | p50 ms | p99 ms |",
        "|---|---|---|---|",
    ]
    for name, requests in sorted(starts.items()):
        times = [1000 * each.seconds for each in measured.answers if each.start == name]
        p50, p99 = np.percentile(times, [50, 99])
        lines.append(f"| {name} | {requests} | {p50:.1f} | {p99:.1f} |")
    times = [1000 * each.seconds for each in measured.answers]
    if times:
        p50, p99 = np.percentile(times, [50, 99])
        lines.append(f"| all | {count} | {p50:.1f} | {p99:.1f} |")
    return "\n".join(lines)


def marks(measured: ManyPods) -> Iterator[Mark]:
    promise = f"{measured.models} declared models on {measured.pods} pods: no request fails"
    yield Mark(
        promise,
        f"{measured.failed} of {len(measured.answers)} failed",
        bool(measured.answers) and measured.failed == 0,
    )
