"""vLLM through gateway and pod beside vLLM alone: streamed completions, in turns in one run.

`python -m benchmarks.engines`, with PILOTLIGHT_VLLM_PYTHON. Alone is the same engine process, asked
at its own socket, so that flags, caches and threads are the same. The model is a tiny Llama with
random weights: a token costs little, and what lies between client and engine shows most.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import orjson

from benchmarks.machine import REPOSITORY, machine_facts, save
from benchmarks.marks import Mark, mark_lines
from benchmarks.proxy.processes import machine_busy_s
from benchmarks.quantiles import quantile, rotated
from pilotlight.sample_models.make_model import make_model

ALONE, THROUGH = "vLLM alone", "through gateway and pod"
CLIENTS: Final = (1, 8, 32)
TOKENS: Final = 32
_PROMPT_WORDS: Final = 24
_WORDS: Final = ("fa", "kajo", "faba", "kati", "gado", "bawe", "davi", "kahi", "hala", "bane")
_TIMEOUT_S: Final = 300.0
MIN_RATIO: Final = 0.97
MAX_FIRST_MS: Final = 5.0
MAX_GAP_RATIO: Final = 1.10
_SERVICE: Final = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: llama}}
spec: {{predictor: {{model: {{modelFormat: {{name: huggingface}}, storageUri: "{uri}"}}}}}}
"""


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    path: str
    port: int = 0
    socket: str = ""
    """In place of a port."""

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.socket:
            return await asyncio.open_unix_connection(self.socket)
        return await asyncio.open_connection("127.0.0.1", self.port)


@dataclass(slots=True)
class Burst:
    """One burst of a target. Seconds."""

    target: str
    clients: int
    seconds: float = 0.0
    busy_cores: float = 0.0
    """Cores in use by all processes of the machine meanwhile."""
    tokens: int = 0
    first_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)


async def stream(target: Target, rng: random.Random, burst: Burst) -> None:
    """One request; raises RuntimeError if it is not answered with all its tokens."""
    prompt = " ".join(rng.choices(_WORDS, k=_PROMPT_WORDS))
    body = orjson.dumps(
        {"model": "llama", "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True,
         "stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    )  # fmt: skip
    head = (
        f"POST {target.path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    last_s = began_s = time.perf_counter()
    reader, writer = await target.connect()
    writer.write(head.encode() + body)
    event = line = await reader.readline()
    is_first, tokens = True, 0
    while line and not line.startswith(b"data: [DONE]"):
        line = await reader.readline()
        if not line.startswith(b"data: {"):
            continue
        now_s, event = time.perf_counter(), line
        if b'"choices":[]' in line:
            tokens = int(orjson.loads(line[6:])["usage"]["completion_tokens"])
        elif is_first:
            burst.first_s.append(now_s - began_s)
            is_first = False
        else:
            burst.gaps_s.append(now_s - last_s)
        last_s = now_s
    writer.close()
    if tokens != TOKENS:
        raise RuntimeError(f"{target.name}: {tokens} of {TOKENS} tokens: {event[:300]!r}")
    burst.tokens += tokens


async def run_burst(target: Target, clients: int, seconds: float, seed: int) -> Burst:
    """Each client sends its next request when the one before has ended."""
    burst = Burst(target.name, clients)
    busy_s, began_s = machine_busy_s(), time.perf_counter()

    async def client(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        while time.perf_counter() < began_s + seconds:
            await stream(target, rng, burst)

    async with asyncio.timeout(_TIMEOUT_S), asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
    burst.seconds = time.perf_counter() - began_s
    burst.busy_cores = (machine_busy_s() - busy_s) / burst.seconds
    return burst


@contextlib.contextmanager
def platform(python: str, folder: Path) -> Iterator[tuple[Target, Target]]:
    """A platform whose engine is warm: it alone, and through the gateway."""
    make_model("tiny-llama", folder / "objects" / "models" / "llama")
    home, service = folder / "home", folder / "llama.yaml"
    service.write_text(_SERVICE.format(uri="s3://models/llama"))
    environment = {**os.environ, "TMPDIR": str(folder)}

    def run(*words: str) -> None:
        command = [sys.executable, "-P", "-m", "pilotlight", *words, "--home", str(home)]
        subprocess.run(command, check=True, env=environment, cwd=REPOSITORY, stdout=sys.stderr)

    try:
        run("up", "--detach", "--pods", "1", "--port", "0", "--objects", str(folder / "objects"),
            "--engine-python", python, "--slots", str(max(CLIENTS)))  # fmt: skip
        run("apply", "-f", str(service))
        gateway = json.loads((home / "platform.json").read_text())["gateway"]
        through = Target(THROUGH, "/openai/v1/completions", port=int(gateway.rpartition(":")[2]))
        asyncio.run(run_burst(through, 1, 0.1, 0))
        (socket,) = folder.glob("pilotlight-*/engine-*.sock")
        yield Target(ALONE, "/v1/completions", socket=str(socket)), through
    finally:
        run("down")


def measure(python: str, *, repeats: int, seconds: float) -> list[Burst]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        platform(python, Path(folder)) as targets,
    ):
        for target in targets:
            asyncio.run(run_burst(target, max(CLIENTS), 1.0, 0))
        return [
            asyncio.run(run_burst(target, clients, seconds, number + 1))
            for number in range(repeats)
            for clients in CLIENTS
            for target in rotated(targets, number)
        ]


@dataclass(frozen=True, slots=True)
class Figures:
    tokens_per_s: float
    first_p50_ms: float
    gap_p99_ms: float


def figures(bursts: Sequence[Burst], target: str, clients: int) -> Figures:
    """Of all bursts of a target: the median of their rates, quantiles of all their samples."""
    own = [each for each in bursts if (each.target, each.clients) == (target, clients)]
    return Figures(
        median(each.tokens / each.seconds for each in own),
        1000 * quantile([value for each in own for value in each.first_s], 0.5),
        1000 * quantile([value for each in own for value in each.gaps_s], 0.99),
    )


def marks(bursts: Sequence[Burst]) -> list[Mark]:
    found = []
    for clients in CLIENTS:
        alone, through = (figures(bursts, name, clients) for name in (ALONE, THROUGH))
        ratio = through.tokens_per_s / alone.tokens_per_s
        first_ms = through.first_p50_ms - alone.first_p50_ms
        gap = through.gap_p99_ms / alone.gap_p99_ms
        at = f"at {clients} clients"
        found += [
            Mark(f"tokens/s {at} >= {MIN_RATIO}", f"{ratio:.3f}", ratio >= MIN_RATIO),
            Mark(
                f"first token p50 {at} +{MAX_FIRST_MS:g} ms at most",
                f"{first_ms:+.1f} ms",
                first_ms <= MAX_FIRST_MS,
            ),
            Mark(
                f"p99 between tokens {at} +10 % at most",
                f"{100 * (gap - 1):+.0f} %",
                gap <= MAX_GAP_RATIO,
            ),
        ]
    return found


def summary(bursts: Sequence[Burst]) -> str:
    """A Markdown table, one line per number of clients and target."""
    lines = [
        "| clients | | tokens/s | first token p50 ms | between tokens p99 ms | busy cores |",
        "|---|---|---|---|---|---|",
    ]
    for clients in CLIENTS:
        for name in (ALONE, THROUGH):
            seen = figures(bursts, name, clients)
            busy = [b.busy_cores for b in bursts if (b.target, b.clients) == (name, clients)]
            lines.append(
                f"| {clients} | {name} | {seen.tokens_per_s:,.0f} | {seen.first_p50_ms:.1f}"
                f" | {seen.gap_p99_ms:.1f} | {median(busy):.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="turns of each target (default: 5)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a burst (default: 10)")
    arguments = parser.parse_args()
    python = os.environ.get("PILOTLIGHT_VLLM_PYTHON", "")
    if not python:
        parser.error("PILOTLIGHT_VLLM_PYTHON must name a Python with vLLM: make bench-engines")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine = machine_facts()
    bursts = measure(python, repeats=arguments.repeats, seconds=arguments.seconds)
    print(f"{machine.line()}\n\n{summary(bursts)}\n\n{mark_lines(marks(bursts))}")
    path = save("engines", machine, vars(arguments), [asdict(each) for each in bursts])
    print(f"\nraw samples: {path.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
