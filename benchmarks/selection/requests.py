"""What applications cost: a request on an idle pod, and the throughput of models beside them.

Two gateways with a pod each, on one core: both serve the same models, one applications as well.
They get load in turns, so that what disturbs the machine disturbs both; ratios are of one turn.
"""

import contextlib
import os
import statistics
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import orjson

from benchmarks.proxy.generator import load
from benchmarks.proxy.pod import APPLICATION, CLASSES, DIMENSIONS, LOOKING, MODEL
from benchmarks.proxy.serving_systems import (
    CoreLayout,
    ReadySystem,
    RoundSetup,
    responds,
    start_pilotlight,
)
from research.looks.training import train, write_sneakpeek

ADDED_MARK_MS: Final = 1.0
SLOWER_MARK: Final = 0.03
_EXAMPLES: Final = 10_000
_CLIENTS: Final = 16
_START_S: Final = 60.0
_BODY: Final = orjson.dumps({"instances": [[0.5] * DIMENSIONS]})


@dataclass(frozen=True, slots=True)
class Served:
    p50_ms: float
    per_s: float
    cpu_ms: float
    """CPU time per request of the gateway with its processes; other work does not stretch it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One client of each of three kinds, then 16 of the model on each gateway."""

    model: Served
    application: Served
    looking: Served
    alone: Served
    beside: Served


def measure(*, turns: int = 7, seconds: float = 2.0) -> list[Turn]:
    """Needs two cores: one for gateways and pods, one for the load."""
    system, generator = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, contextlib.ExitStack() as stack:
        look = Path(folder, "look")
        _write_look(look)
        setup = RoundSetup(CoreLayout.SHARED, {system}, {system}, generator, Path(folder, "alone"))
        setup.folder.mkdir()
        alone = start_pilotlight(stack, setup, "--variants")
        setup = replace(setup, folder=Path(folder, "beside"))
        setup.folder.mkdir()
        beside = start_pilotlight(stack, setup, "--look", str(look))

        def run(ready: ReadySystem, name: str, clients: int) -> Served:
            url = ready.url.replace(f"/{MODEL}:", f"/{name}:")
            cpu_s = ready.process.cpu_s()
            found = load(url, _BODY, clients=clients, seconds=seconds, core=generator)
            if found.errors:
                raise RuntimeError(f"{found.errors} of {found.requests} requests to {name} failed")
            cpu_ms = (ready.process.cpu_s() - cpu_s) / found.requests * 1e3
            return Served(found.p50_ms, found.requests_per_s, cpu_ms)

        for ready, name in ((alone, MODEL), (beside, APPLICATION), (beside, LOOKING)):
            url = ready.url.replace(f"/{MODEL}:", f"/{name}:")
            ready.process.wait_until(partial(responds, url, _BODY), timeout_s=_START_S)
            run(ready, name, _CLIENTS)  # warms it up
        return [
            Turn(
                run(beside, MODEL, 1),
                run(beside, APPLICATION, 1),
                run(beside, LOOKING, 1),
                run(alone, MODEL, _CLIENTS),
                run(beside, MODEL, _CLIENTS),
            )
            for _ in range(turns)
        ]


def _write_look(folder: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(_EXAMPLES) % len(CLASSES)
    rows = rng.standard_normal((_EXAMPLES, DIMENSIONS), dtype=np.float32)
    rows[:, 0] += 4 * labels
    validation = (rows[:200], labels[:200])
    trained = train(rows, labels, validation, classes=len(CLASSES), k=5)
    write_sneakpeek(
        folder, trained, application=f"default/{LOOKING}", classes=CLASSES, inputs=("features",)
    )


def summary(turns: list[Turn]) -> list[str]:
    """Lines of Markdown: medians over the turns, and the marks."""
    lines = [
        f"| median of {len(turns)} turns (lowest to highest) | by the clock | CPU time | mark |",
        "| --- | --- | --- | --- |",
        _row(
            "model, p50 of one client",
            [(each.model.p50_ms, each.model.cpu_ms) for each in turns],
            "ms",
            "",
        ),
    ]
    for what, served in (
        ("an application adds", [each.application for each in turns]),
        ("with a look at the data", [each.looking for each in turns]),
    ):
        added = [
            (each.p50_ms - turn.model.p50_ms, each.cpu_ms - turn.model.cpu_ms)
            for each, turn in zip(served, turns, strict=True)
        ]
        lines.append(_row(what, added, "ms", f"{ADDED_MARK_MS:g} ms"))
    slower = [
        (
            100 * (each.alone.per_s / each.beside.per_s - 1),
            100 * (each.beside.cpu_ms / each.alone.cpu_ms - 1),
        )
        for each in turns
    ]
    what = f"time per request of a model beside applications, {_CLIENTS} clients"
    return [*lines, _row(what, slower, "%", f"+{SLOWER_MARK:.0%}")]


def _row(what: str, values: list[tuple[float, float]], unit: str, mark: str) -> str:
    shown = [
        f"{statistics.median(column):.2f} {unit} ({min(column):.2f} to {max(column):.2f})"
        for column in zip(*values, strict=True)
    ]
    return f"| {what} | {' | '.join(shown)} | {mark} |"
