"""The experiment liu-grid: a map of the best policy over load, inference, postprocess, network.

Liu 2025, section 6.5, names the four factors and leaves the map open. Three workloads per cell:
`pair` is that of 6.4.2 (one warm pod, two concurrent requests), `burst` the same with eight,
`stream` a random sequence for two models on pods with memory for one. Measured is the mean latency.
"""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from registry.domain.model import RoutingPolicy
from research.demo import FIXED_POLICIES, POLICIES, mean_s, percentile_s
from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.harness.rendering import listed
from research.experiments.liu.simulated import PODS, ModelTimings, run_responses, simulation_of
from research.report.style import COLOURS, DPI, styled

_LOADS_S: Final = (0.3, 1.0, 3.0, 10.0, 30.0)
_INFERS_S: Final = (0.1, 1.0, 10.0)
_POSTPROCESSINGS_S: Final = (0.0, 1.0, 5.0)
_NETWORKS_S: Final = (0.0, 1.0, 5.0)
"""Network time to another pod, in addition to 2 ms there and back."""
_BURST_REQUESTS: Final = {"pair": 2, "burst": 8}
WORKLOADS: Final = (*_BURST_REQUESTS, "stream")
_TIE_RATIO: Final = 0.01
"""Fixed policies within 1 % of the best one win together."""
LETTERS: Final = dict(zip(FIXED_POLICIES, "CQP", strict=True))
_STREAM_REQUESTS: Final = 200
_BUSY_SHARE: Final = 0.4
"""Share of all slots that warm requests occupy in a stream."""


_WINNER_NAMES: Final = {
    "C": "colocation", "Q": "colocation-queueing", "P": "remote-proxy",
    "CQ": "colocation = queueing", "CP": "colocation = proxy", "QP": "queueing = proxy",
    "CQP": "all alike",
}  # fmt: skip
_WINNER_COLOURS: Final = dict(
    zip(
        _WINNER_NAMES,
        (COLOURS[0], COLOURS[1], COLOURS[2], "#b9b2d8", "#8fd0cf", "#c9d36b", "#dddddd"),
        strict=True,
    )
)
_DARK: Final = ("C", "P")


@dataclass(frozen=True, slots=True)
class CellTask:
    """One cell under one workload, with all seeds."""

    times: ModelTimings
    workload: str
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CellResult:
    mean_s: Mapping[str, float]
    """Mean latency by policy, `auto` included."""

    @property
    def best_s(self) -> float:
        """Mean latency of the best fixed policy."""
        return min(self.mean_s[policy] for policy in FIXED_POLICIES)

    @property
    def winners(self) -> str:
        """The letters of the policies that win."""
        limit_s = self.best_s * (1 + _TIE_RATIO)
        return "".join(LETTERS[each] for each in FIXED_POLICIES if self.mean_s[each] <= limit_s)

    @property
    def regret(self) -> float:
        """The share by which `auto` takes longer than the best fixed policy of the cell."""
        return self.mean_s["auto"] / self.best_s - 1


def cells(*, is_quick: bool) -> Iterator[ModelTimings]:
    """Every point of the grid; with `is_quick` only the first and last cold start."""
    step = 4 if is_quick else 1
    axes = (_LOADS_S, _INFERS_S, _POSTPROCESSINGS_S, _NETWORKS_S)
    for times in itertools.product(*(axis[::step] for axis in axes)):
        yield ModelTimings(*times)


def simulate_cell(task: CellTask) -> CellResult:
    """The mean latency under every policy; only a stream depends on the seed."""
    simulate = _stream_s if task.workload == "stream" else _burst_s
    seeds = task.seeds if task.workload == "stream" else task.seeds[:1]
    return CellResult(
        {policy: mean_s([simulate(task, policy, seed) for seed in seeds]) for policy in POLICIES}
    )


def _burst_s(task: CellTask, policy: str, seed: int) -> float:
    """Concurrent requests after one that warms a pod."""
    burst = [(task.times.settled_s, "m")] * _BURST_REQUESTS[task.workload]
    run = simulation_of([(0.0, "m"), *burst], {"m": task.times}, RoutingPolicy(policy), seed)
    return mean_s([response.latency_s for response in run_responses(run)[1:]])


def _stream_s(task: CellTask, policy: str, seed: int) -> float:
    """A random sequence for two models on pods with memory for one."""
    times, rng = task.times, random.Random(f"{seed}:stream")
    rate_per_s = _BUSY_SHARE * PODS / (times.infer_s + times.postprocess_s)
    at_s = list(itertools.accumulate(rng.expovariate(rate_per_s) for _ in range(_STREAM_REQUESTS)))
    run = simulation_of(
        list(zip(at_s, rng.choices(("a", "b"), k=len(at_s)), strict=True)),
        dict.fromkeys(("a", "b"), times),
        RoutingPolicy(policy),
        seed,
        models_per_pod=1,
    )
    return mean_s([response.latency_s for response in run_responses(run)])


CellResults = Mapping[ModelTimings, CellResult]


def run(settings: Settings) -> Result:
    """The map of every workload."""
    seeds = settings.seeds or ((1,) if settings.is_quick else (1, 2, 3))
    times = list(cells(is_quick=settings.is_quick))
    tasks = [CellTask(each, workload, seeds) for workload in WORKLOADS for each in times]
    found = iter(parallel_map(simulate_cell, tasks, settings, what="cells"))
    grid = {workload: {each: next(found) for each in times} for workload in WORKLOADS}
    tables = [_summary_table(grid), *(_map_table(each, results) for each, results in grid.items())]
    images: list[Path] = []
    if settings.out is not None:
        settings.progress(len(tasks), len(tasks), "drawing")
        images = [_draw_map(each, results, settings.out) for each, results in grid.items()]
    notes = (
        "C colocation, Q colocation-queueing, P remote-proxy; several letters: within 1 % of each "
        "other. The figure is auto's regret: its mean latency over that of the best fixed policy, "
        "less one.",
        f"simulated, 8 pods of one slot; stream over seeds {listed(seeds)}, "
        "pair and burst are the same for every seed",
    )
    return Result(tuple(tables), notes, tuple(images))


def _summary_table(grid: Mapping[str, CellResults]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for workload, results in grid.items():
        found = list(results.values())
        regrets = [each.regret for each in found]
        wins = [sum(letter in each.winners for each in found) for letter in LETTERS.values()]
        alone = [sum(each.winners == letter for each in found) for letter in LETTERS.values()]
        rows.append(
            (
                workload,
                len(found),
                *(f"{a} ({b})" for a, b in zip(wins, alone, strict=True)),
                _percent(percentile_s(regrets, 0.5)),
                _percent(percentile_s(regrets, 0.95)),
                _percent(max(regrets)),
                _percent(min(regrets)),
                *(
                    _percent(mean_s([each.mean_s[policy] / each.best_s - 1 for each in found]))
                    for policy in POLICIES
                ),
            )
        )
    return Table(
        "Cells won (alone), auto's regret, and every policy's mean distance from the best fixed "
        "policy of each cell",
        (
            "workload",
            "cells",
            *(f"{each} wins" for each in FIXED_POLICIES),
            "regret: median",
            "95 %",
            "worst",
            "best",
            *(f"distance: {each}" for each in POLICIES),
        ),
        tuple(rows),
    )


def _map_table(workload: str, results: CellResults) -> Table:
    loads_s = sorted({times.load_s for times in results})
    rows: list[tuple[Cell, ...]] = []
    for others, group in itertools.groupby(sorted(results, key=_row), lambda at: _row(at)[:3]):
        shown = [results[times] for times in group]
        rows.append((*others, *(f"{each.winners} {_percent(each.regret)}" for each in shown)))
    return Table(
        f"{workload}: winners and auto's regret, by cold start",
        ("infer s", "postprocess s", "network s", *(f"cold start {each:g} s" for each in loads_s)),
        tuple(rows),
    )


def _row(times: ModelTimings) -> tuple[float, float, float, float]:
    return times.infer_s, times.postprocess_s, times.network_s, times.load_s


def _percent(share: float) -> str:
    return f"{share:+.1%}"


def _draw_map(workload: str, results: CellResults, folder: Path) -> Path:
    """A panel per inference and postprocessing time, a cell per cold start and network time."""
    infers_s = sorted({times.infer_s for times in results})
    afters_s = sorted({times.postprocess_s for times in results})
    with styled():
        figure = Figure(figsize=(3.6 * len(afters_s) + 1, 1.9 * len(infers_s) + 1.4))
        panels = figure.subplots(len(infers_s), len(afters_s), squeeze=False)
        for row, infer_s in enumerate(infers_s):
            for column, after_s in enumerate(afters_s):
                axes: Axes = panels[row, column]
                _draw_panel(
                    axes,
                    {
                        times: each
                        for times, each in results.items()
                        if (times.infer_s, times.postprocess_s) == (infer_s, after_s)
                    },
                )
                axes.set_title(
                    f"inference {infer_s:g} s, post-processing {after_s:g} s", fontsize=9.5
                )
                if column == 0:
                    axes.set_ylabel("network (s)")
                if row == len(infers_s) - 1:
                    axes.set_xlabel("cold start (s)")
        seen = {each.winners for each in results.values()}
        handles = [
            Patch(color=_WINNER_COLOURS[each], label=_WINNER_NAMES[each])
            for each in _WINNER_NAMES
            if each in seen
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9.5)
        figure.suptitle(
            f"{workload}: fastest fixed policy by mean latency; in each cell auto's regret in %",
            fontsize=11.5,
        )
        path = folder / f"map-{workload}.png"
        figure.savefig(path, dpi=DPI)
    return path


def _draw_panel(axes: Axes, results: CellResults) -> None:
    loads_s = sorted({times.load_s for times in results})
    networks_s = sorted({times.network_s for times in results})
    axes.grid(visible=False)
    for times, each in results.items():
        x, y = loads_s.index(times.load_s), networks_s.index(times.network_s)
        axes.fill(
            [x, x + 1, x + 1, x],
            [y, y, y + 1, y + 1],
            color=_WINNER_COLOURS[each.winners],
            edgecolor="white",
            linewidth=1,
        )
        axes.text(
            x + 0.5,
            y + 0.5,
            f"{100 * each.regret:+.0f}",
            ha="center",
            va="center",
            fontsize=9,
            color="white" if each.winners in _DARK else "black",
        )
    axes.set_xticks([at + 0.5 for at in range(len(loads_s))], [f"{each:g}" for each in loads_s])
    axes.set_yticks(
        [at + 0.5 for at in range(len(networks_s))], [f"{each:g}" for each in networks_s]
    )
    axes.set_xlim(0, len(loads_s))
    axes.set_ylim(0, len(networks_s))
    axes.tick_params(length=0)


EXPERIMENT: Final = Experiment(
    "liu-grid",
    "Liu 2025, 6.5: which policy wins where, over cold start, inference, post-processing, network",
    run,
)
