"""Requests per CPU second of each server at 16 clients, and CPU time over the bare library's.

CPU time of the servers' processes, not the clock: the figures hold on a busy machine, latencies do
not. Servers take turns in bursts; V2 in JSON, one row per request, one inference thread.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.formats.servers import (
    GATEWAY,
    KINDS,
    KSERVE,
    OTHER_CORE,
    POD,
    Kind,
    Server,
    make,
    start_all,
)
from benchmarks.machine import REPOSITORY
from benchmarks.marks import Mark
from benchmarks.proxy.generator import BurstResult, load

CLIENTS: Final = 16
WANTED_RATIO: Final = 3.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One burst of load on one server."""

    model: str
    server: str
    load: BurstResult
    cpu_s: float

    @property
    def per_core(self) -> float:
        """Requests without error per CPU second of the server."""
        return (self.load.requests - self.load.errors) / self.cpu_s


@dataclass(frozen=True, slots=True)
class Measured:
    samples: list[Sample]
    bare_us: dict[str, float]
    """CPU time of a prediction by the library alone, by model."""
    missing: list[str]


def measure(*, repeats: int, seconds: float) -> Measured:
    measured = Measured([], {}, [])
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="bench-formats-") as folder:
            measured.bare_us[kind.name] = _bare_us(kind, Path(folder))
            with contextlib.ExitStack() as stack:
                servers, missing = start_all(stack, kind, Path(folder))
                for _ in range(repeats):
                    for server in servers:
                        measured.samples.append(_burst(kind, server, seconds))
        measured.missing.extend(line for line in missing if line not in measured.missing)
    return measured


def _burst(kind: Kind, server: Server, seconds: float) -> Sample:
    before_s = server.cpu_s()
    result = load(server.url, kind.body, clients=CLIENTS, seconds=seconds, core=OTHER_CORE)
    return Sample(kind.name, server.name, result, server.cpu_s() - before_s)


def _bare_us(kind: Kind, folder: Path) -> float:
    path = make(kind.maker, folder / "bare" / kind.file)
    command = [sys.executable, "-m", "benchmarks.formats.bare", kind.maker, str(path)]
    done = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return float(done.stdout)


def summary(measured: Measured) -> str:
    lines = [
        "| model | server | requests per CPU second (lowest to highest) | CPU µs per request"
        " | of these the library | p50 ms | p99 ms | times KServe |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, server in dict.fromkeys((each.model, each.server) for each in measured.samples):
        found = _of(measured.samples, model, server)
        rates = [each.per_core for each in found]
        rate, kserve = median(rates), _rate(measured.samples, model, KSERVE)
        lines.append(
            f"| {model} | {server} | {rate:.0f} ({min(rates):.0f} to {max(rates):.0f}) |"
            f" {1e6 / rate:.0f} | {measured.bare_us[model]:.0f} |"
            f" {median(each.load.p50_ms for each in found):.1f} |"
            f" {median(each.load.p99_ms for each in found):.1f} |"
            f" {f'{rate / kserve:.2f}' if kserve else '-'} |"
        )
    errors = sum(each.load.errors for each in measured.samples)
    lines += ["", f"{errors} errors in {len(measured.samples)} bursts."]
    return "\n".join([*lines, *(f"Left out: {line}." for line in measured.missing)])


def marks(measured: Measured) -> Iterator[Mark]:
    for model in measured.bare_us:
        kserve = _rate(measured.samples, model, KSERVE)
        if kserve is None:
            continue
        for server in (POD, GATEWAY):
            rate = _rate(measured.samples, model, server)
            assert rate is not None
            ratio = rate / kserve
            promise = f"{model}: {server}, {WANTED_RATIO:g} times the requests per core of KServe's"
            yield Mark(promise, f"{ratio:.2f} times", ratio >= WANTED_RATIO)


def _of(samples: Sequence[Sample], model: str, server: str) -> list[Sample]:
    return [each for each in samples if (each.model, each.server) == (model, server)]


def _rate(samples: Sequence[Sample], model: str, server: str) -> float | None:
    found = _of(samples, model, server)
    return median(each.per_core for each in found) if found else None
