"""Which policy wins where: a grid of cold start, inference, post-processing and network times.

Liu 2025, section 6.5, names the four factors and leaves the map open. Three workloads per cell:
`pair` is 6.4.2's (one warm pod, two requests at once), `burst` the same with eight, `stream` a
random sequence for two models on pods that have room for one. Measured is the mean latency.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from load.experiments.experiment import Experiment, Result, Settings, Table
from load.experiments.liu.map_plot import draw_map
from load.experiments.liu.runs import mean_s, percentile_s
from load.experiments.liu.scenarios import FIXED_POLICIES, POLICIES
from load.experiments.liu.simulated import (
    PODS,
    ModelTimings,
    answers_of,
    cluster_of,
    model_of,
    tell_times,
    trace_of,
)
from load.experiments.parallel_map import run_side_by_side
from load.simulator.simulation import Simulation
from registry.domain.model import RoutingPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from load.experiments.experiment import Cell

LOADS_S: Final = (0.3, 1.0, 3.0, 10.0, 30.0)
INFERS_S: Final = (0.1, 1.0, 10.0)
POSTPROCESSINGS_S: Final = (0.0, 1.0, 5.0)
NETWORKS_S: Final = (0.0, 1.0, 5.0)
"""To another pod, beside 2 ms there and back."""
SIZE_OF_BURST: Final = {"pair": 2, "burst": 8}
WORKLOADS: Final = ("pair", "burst", "stream")
TIE_RATIO: Final = 0.01
"""Fixed policies within 1 % of the best win together."""
LETTERS: Final = dict(zip(FIXED_POLICIES, "CQP", strict=True))
_STREAM_REQUESTS: Final = 200
_BUSY_SHARE: Final = 0.4
"""Of all slots in a stream, by warm requests."""


@dataclass(frozen=True, slots=True)
class CellTask:
    """One cell of the grid under one workload, all seeds of it."""

    times: ModelTimings
    workload: str
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Won:
    """What a cell came to."""

    mean_s: Mapping[str, float]
    """Mean latency by policy, `auto` among them."""

    @property
    def best_s(self) -> float:
        """The best of the fixed policies."""
        return min(self.mean_s[policy] for policy in FIXED_POLICIES)

    @property
    def winners(self) -> str:
        """The letters of those that win."""
        limit_s = self.best_s * (1 + TIE_RATIO)
        return "".join(LETTERS[each] for each in FIXED_POLICIES if self.mean_s[each] <= limit_s)

    @property
    def regret(self) -> float:
        """How much longer `auto` takes than the best fixed policy of the cell, as a share."""
        return self.mean_s["auto"] / self.best_s - 1


def run(settings: Settings) -> Result:
    """The whole map."""
    seeds = settings.seeds or ((1,) if settings.is_quick else (1, 2, 3))
    times = list(cells(is_quick=settings.is_quick))
    tasks = [CellTask(each, workload, seeds) for workload in WORKLOADS for each in times]
    found = run_side_by_side(play_cell, tasks, settings, what="cells")
    grid = {(task.workload, task.times): won for task, won in zip(tasks, found, strict=True)}
    tables = [_summary_table(grid)]
    tables += [_map_table(workload, grid) for workload in WORKLOADS]
    images: list[Path] = []
    if settings.out is not None:
        settings.progress(len(tasks), len(tasks), "drawing")
        images = [draw_map(workload, grid, settings.out) for workload in WORKLOADS]
    notes = [
        "C colocation, Q colocation-queueing, P remote-proxy; several letters: within 1 % of each "
        "other. The figure is auto's regret: its mean latency over that of the best fixed policy, "
        "less one.",
        f"simulated, 8 pods of one slot; stream over seeds {', '.join(map(str, seeds))}, "
        "pair and burst are the same for every seed",
    ]
    return Result(tuple(tables), tuple(notes), tuple(images))


def cells(*, is_quick: bool) -> Iterator[ModelTimings]:
    """Every point of the grid; the ends of the long axis only with `is_quick`."""
    axes = (LOADS_S, INFERS_S, POSTPROCESSINGS_S, NETWORKS_S)
    step = 4 if is_quick else 1
    for load_s, infer_s, postprocess_s, network_s in itertools.product(
        *(axis[::step] for axis in axes)
    ):
        yield ModelTimings(load_s, infer_s, postprocess_s, network_s)


def play_cell(task: CellTask) -> Won:
    """Simulate a cell under every policy."""
    play = _stream_s if task.workload == "stream" else _burst_s
    seeds = task.seeds if task.workload == "stream" else task.seeds[:1]
    return Won({policy: mean_s([play(task, policy, seed) for seed in seeds])
                for policy in POLICIES})  # fmt: skip


def _burst_s(task: CellTask, policy: str, seed: int) -> float:
    times = task.times
    pause_s = 10 * (times.load_s + times.infer_s + times.postprocess_s + times.network_s)
    at_s = [0.0, *[pause_s] * SIZE_OF_BURST[task.workload]]
    run = Simulation(
        cluster_of([model_of("m", times)]),
        trace_of(at_s, ["m"] * len(at_s)),
        RoutingPolicy(policy),
        seed,
    )
    tell_times(run, {"m": times})
    return mean_s([answer.latency_s for answer in answers_of(run)[1:]])


def _stream_s(task: CellTask, policy: str, seed: int) -> float:
    times, rng = task.times, random.Random(f"{seed}:stream")
    rate_per_s = _BUSY_SHARE * PODS / (times.infer_s + times.postprocess_s)
    at_s = list(itertools.accumulate(rng.expovariate(rate_per_s) for _ in range(_STREAM_REQUESTS)))
    names = rng.choices(("a", "b"), k=len(at_s))
    run = Simulation(
        cluster_of([model_of(name, times) for name in ("a", "b")], models_per_pod=1),
        trace_of(at_s, names),
        RoutingPolicy(policy),
        seed,
    )
    tell_times(run, dict.fromkeys(("a", "b"), times))
    return mean_s([answer.latency_s for answer in answers_of(run)])


# Tables


def _summary_table(grid: Mapping[tuple[str, ModelTimings], Won]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for workload in WORKLOADS:
        found = [won for (of, _), won in grid.items() if of == workload]
        regrets = [won.regret for won in found]
        wins = [sum(letter in won.winners for won in found) for letter in LETTERS.values()]
        alone = [sum(won.winners == letter for won in found) for letter in LETTERS.values()]
        rows.append((
            workload, len(found), *(f"{a} ({b})" for a, b in zip(wins, alone, strict=True)),
            _percent(percentile_s(regrets, 0.5)), _percent(percentile_s(regrets, 0.95)),
            _percent(max(regrets)), _percent(min(regrets)),
            *(_percent(mean_s([won.mean_s[each] / won.best_s - 1 for won in found]))
              for each in POLICIES),
        ))  # fmt: skip
    return Table(
        "Cells won (alone), auto's regret, and every policy's mean distance from the best fixed "
        "policy of each cell",
        ("workload", "cells", *(f"{each} wins" for each in FIXED_POLICIES), "regret: median",
         "95 %", "worst", "best", *(f"distance: {each}" for each in POLICIES)),
        tuple(rows),
    )  # fmt: skip


def _map_table(workload: str, grid: Mapping[tuple[str, ModelTimings], Won]) -> Table:
    cells = {times: won for (of, times), won in grid.items() if of == workload}
    loads_s = sorted({times.load_s for times in cells})
    rows: list[tuple[Cell, ...]] = []
    for others, group in itertools.groupby(sorted(cells, key=_row), key=lambda at: _row(at)[:3]):
        rows.append((*others, *(_cell(cells[times]) for times in group)))
    return Table(
        f"{workload}: who wins, and auto's regret, by cold start",
        ("infer s", "postprocess s", "network s", *(f"cold start {each:g} s" for each in loads_s)),
        tuple(rows),
    )


def _row(times: ModelTimings) -> tuple[float, float, float, float]:
    return times.infer_s, times.postprocess_s, times.network_s, times.load_s


def _cell(won: Won) -> str:
    return f"{won.winners} {_percent(won.regret)}"


def _percent(share: float) -> str:
    return f"{share:+.1%}"


EXPERIMENT: Final = Experiment(
    "liu-grid",
    "Liu 2025, 6.5: which policy wins where, over cold start, inference, post-processing, network",
    run,
)
