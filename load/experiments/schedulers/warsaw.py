"""The experiment warsaw: schedulers compared on half an hour of requests with spikes.

Reproduces Blinowski et al. 2024, chapter 6, with the production policies in the simulator, and adds
the scheduler `predictive`.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np

from load.experiments.harness.experiment import Experiment, Result, Settings, Table
from load.experiments.harness.parallel_map import parallel_map
from load.experiments.harness.published_figures import absent_note, published_figures
from load.experiments.harness.rendering import listed, spread
from load.experiments.schedulers.runs import SchedulerTask, simulate
from load.experiments.schedulers.scheduler_configs import SCHEDULERS, SHIPPED
from load.experiments.schedulers.thesis_comparison import CLAIMS, OWN_SECTION, by_seed
from load.experiments.schedulers.workload import Workload
from load.report.style import COLOURS, DPI, LINES, legend_below, log_ticks, rows_of_axes, styled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from load.experiments.harness.experiment import Cell
    from load.experiments.schedulers.runs import SchedulerResult

FILE: Final = "warsaw_facts.csv"
MACHINES: Final = 6
_SEEDS: Final = (1, 2, 3, 4, 5)
_QUICK: Final = Workload(minutes=4, spikes=1)
_COLUMNS: Final[Mapping[str, Callable[[SchedulerResult], float]]] = {
    "missed %": lambda run: 100 * run.missed,
    "steady %": lambda run: 100 * run.missed_steady,
    "in spikes %": lambda run: 100 * run.missed_in_spikes,
    "mean (s)": lambda run: run.mean_s,
    "p40 (s)": lambda run: run.p40_s,
    "p99 (s)": lambda run: run.p99_s,
    "longest (s)": lambda run: run.longest_s,
    "loads": lambda run: run.loads,
    "loading (s)": lambda run: run.load_s,
}


def run(settings: Settings) -> Result:
    """Every scheduler on every seed, the thesis's reported changes, and the plot."""
    facts = published_figures(settings, FILE)
    workload = _QUICK if settings.is_quick else Workload()
    seeds = settings.seeds or (_SEEDS[:1] if settings.is_quick else _SEEDS)
    tasks = [SchedulerTask(name, seed, MACHINES, workload) for seed in seeds for name in SCHEDULERS]
    results = parallel_map(simulate, tasks, settings, what="runs")
    images = (draw(results, settings.out),) if settings.out is not None else ()
    tables = (_runs_table(results, workload), _claims_table(results, facts))
    return Result(tables, tuple(_notes(settings, workload, seeds, results)), images)


def _runs_table(results: Sequence[SchedulerResult], workload: Workload) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in SCHEDULERS:
        runs = [each for each in results if each.scheduler == name]
        rows.append((name, *(_spread([of(each) for each in runs]) for of in _COLUMNS.values())))
    return Table(
        f"Simulated, {workload.minutes} minutes, {MACHINES} machines: mean (lowest to highest)",
        ("scheduler", *_COLUMNS),
        tuple(rows),
    )


def _claims_table(results: Sequence[SchedulerResult], facts: Mapping[int, float]) -> Table:
    seeds = by_seed(results)
    rows: list[tuple[Cell, ...]] = []
    for claim in CLAIMS:
        reported = claim.reported(facts)
        direction = "less" if claim.is_fewer else "more"
        rows.append((
            claim.section, claim.label, claim.unit,
            direction if claim.section != OWN_SECTION else None,
            None if reported is None else f"{reported:+g}",
            _spread([claim.change(runs) for runs in seeds]),
            f"{sum(claim.holds(runs) for runs in seeds)} of {len(seeds)}",
        ))  # fmt: skip
    return Table(
        "Changes: direction and size in the thesis, and in these runs",
        ("section", "change", "unit", "thesis", "its size", "ours", "direction holds in seeds"),
        tuple(rows),
    )


def _spread(values: Sequence[float]) -> str:
    return _short(values[0]) if len(values) == 1 else spread(values, fmean, _short)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _notes(
    settings: Settings,
    workload: Workload,
    seeds: Sequence[int],
    results: Sequence[SchedulerResult],
) -> list[str]:
    first = results[0]
    notes = [
        f"seeds {listed(seeds)}; {workload.minutes} minutes at about {workload.rate_per_min:g} "
        f"requests per minute with {workload.spikes} spikes of two minutes in which half of the "
        f"functions are called {workload.height:g} times as often; seed {first.seed} has "
        f"{first.requests:,} requests",
        f"{MACHINES} machines of two models each, one request at a time, no batches; times of nine "
        "models on c5.18xlarge (tiger-simulator); late requests are served, too",
        f"failed requests: {sum(each.unanswered for each in results)}",
        f"CPU time of all runs: {sum(each.cpu_s for each in results):.0f} s",
    ]
    if settings.file(FILE) is None:
        notes.append(absent_note(FILE))
    return notes


def draw(results: Sequence[SchedulerResult], folder: Path) -> Path:
    """`schedulers.png`: completion times, missed deadlines by minute (first seed), load times."""
    path = folder / "schedulers.png"
    runs = {
        name: [each for each in results if each.scheduler == name]
        for name in SCHEDULERS
        if name != SHIPPED
    }
    with styled():
        figure, (completion, minutes, loads) = rows_of_axes([3.4, 3.2, 2.8])
        _draw_completion(completion, runs)
        _draw_minutes(minutes, [found[0] for found in runs.values()])
        _draw_loads(loads, runs)
        legend_below(completion)
        figure.savefig(path, format="png", dpi=DPI)
    return path


def _draw_completion(axes: Axes, runs: Mapping[str, list[SchedulerResult]]) -> None:
    for number, (name, found) in enumerate(runs.items()):
        times_s = np.median([each.curve_s for each in found], axis=0)
        shares = np.linspace(0, 1, len(times_s))
        axes.plot(times_s, shares, label=name, color=COLOURS[number], linestyle=LINES[number])
    axes.set_title("Simulated: completion times, median of seeds")
    axes.set_xlabel("Time from arrival to response (s)")
    axes.set_ylabel("Share of requests")
    axes.set_xscale("log")
    log_ticks(axes.xaxis)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _draw_minutes(axes: Axes, runs: Sequence[SchedulerResult]) -> None:
    edges = np.arange(len(runs[0].arrivals) + 1)
    axes.stairs(runs[0].arrivals, edges, fill=True, color="#e4e4e4")
    for number, run in enumerate(runs):
        axes.stairs(
            run.misses, edges, color=COLOURS[number], linestyle=LINES[number], baseline=None
        )
    axes.set_title(f"Missed deadlines before all arrivals (grey), seed {runs[0].seed}")
    axes.set_xlabel("Minute of arrival")
    axes.set_ylabel("Requests per minute")
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)


def _draw_loads(axes: Axes, runs: Mapping[str, list[SchedulerResult]]) -> None:
    for number, (name, found) in enumerate(runs.items()):
        times_s = [each.load_s for each in found]
        mean_s = float(np.mean(times_s))
        error = [[mean_s - min(times_s)], [max(times_s) - mean_s]]
        axes.barh(name, mean_s, xerr=error, color=COLOURS[number], ecolor="#555555", height=0.6)
    axes.invert_yaxis()
    axes.set_title("Time spent on loads, all machines: mean, lowest and highest of seeds")
    axes.set_xlabel("Seconds")
    axes.grid(visible=False, axis="y")


EXPERIMENT: Final = Experiment(
    "warsaw",
    "Blinowski et al. 2024, chapter 6: Baseline, Clockwork, round robin refined; predictive beside",
    run,
)
