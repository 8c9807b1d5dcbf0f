"""Times of selection: planning a window by each policy, looking at data, requests to applications.

`python -m benchmarks.selection FOLDER [POLICY …]` compares policies live and simulated instead.
Planning is timed by the clock, and by its CPU time, which other work on the machine stretches less.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.machine import machine_facts, save
from benchmarks.selection import live, requests, simulated
from registry.domain.application import Penalty, SelectionPolicy
from tests.variants.planning.windows import random_window
from variants.look_files import NearestExamples
from variants.planning.search import plan_window

REQUESTS: Final = 24
WINDOWS: Final = 60
PLANNING_MARK_MS: Final = 10.0
EVIDENCE_MARK_MS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Timed:
    what: str
    p50_ms: float
    p95_ms: float
    cpu_p95_ms: float
    mark_ms: float


def measure() -> list[Timed]:
    """24 requests of 5 and of 12 applications with 3 variants; 10,000 examples of 64 dimensions."""
    found = []
    for applications in (5, 12):
        windows = [
            random_window(
                seed,
                requests=REQUESTS,
                applications=applications,
                has_evidence=True,
                penalty=Penalty.SIGMOID,
            )
            for seed in range(WINDOWS)
        ]
        for policy in SelectionPolicy:
            if policy is not SelectionPolicy.EXACT:
                calls = [_planning(policy, window) for window in windows]
                name = f"{policy}, {applications} applications"
                found.append(_timed(name, calls, PLANNING_MARK_MS))
    return [*found, _evidence()]


def _planning(policy: SelectionPolicy, window: object) -> Callable[[], object]:
    return lambda: plan_window(policy, window)  # type: ignore[arg-type]


def _evidence() -> Timed:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((10_000, 64), dtype=np.float32)
    examples = NearestExamples(
        vectors,
        rng.integers(0, 10, 10_000),
        classes=10,
        k=5,
        centre=np.zeros(64, np.float32),
        projection=np.eye(64, dtype=np.float32),
    )
    rows = rng.standard_normal((500, 1, 64), dtype=np.float32)
    calls: list[Callable[[], object]] = [lambda row=row: examples.evidence(row) for row in rows]  # type: ignore[misc]
    return _timed("evidence, 10,000 x 64", calls, EVIDENCE_MARK_MS)


def _timed(what: str, calls: list[Callable[[], object]], mark_ms: float) -> Timed:
    calls[0]()
    times_ms, cpu_ms = [], []
    for call in calls:
        started_s, begun_s = time.perf_counter(), time.thread_time()
        call()
        cpu_ms.append((time.thread_time() - begun_s) * 1e3)
        times_ms.append((time.perf_counter() - started_s) * 1e3)
    p50, p95 = np.quantile(times_ms, [0.5, 0.95]).tolist()
    return Timed(what, p50, p95, float(np.quantile(cpu_ms, 0.95)), mark_ms)


def main() -> None:
    """Without a folder all that needs no platform; with one, policies live and simulated."""
    machine = machine_facts()
    print(f"{machine.line()}\n")
    if words := sys.argv[1:]:
        compared = live.measure(Path(words[0]).resolve(), words[1:] or live.POLICIES)
        print(*live.lines(compared), sep="\n")
        save("live_selection", machine, {}, [asdict(each) for each in compared])
        return
    print("| what | p50 ms | p95 ms | p95 ms of CPU | mark: p95 ms | met |")
    print("| --- | --- | --- | --- | --- | --- |")
    results = measure()
    for each in results:
        met = "yes" if each.p95_ms <= each.mark_ms else "no"
        print(
            f"| {each.what} | {each.p50_ms:.2f} | {each.p95_ms:.2f} | {each.cpu_p95_ms:.2f} "
            f"| {each.mark_ms:g} | {met} |"
        )
    for pods in (1, 4):
        per_s = simulated.measure("sneakpeek", pods=pods)
        print(
            f"\nsimulated under sneakpeek, {pods} pods: {per_s:,.0f} requests per second of CPU "
            f"time (mark: {simulated.MARK_PER_S:,.0f})"
        )
    turns = requests.measure()
    print("", *requests.summary(turns), sep="\n")
    samples = [*map(asdict, results), *map(asdict, turns)]
    print(f"\nsamples: {save('selection', machine, {}, samples)}")


if __name__ == "__main__":
    main()
