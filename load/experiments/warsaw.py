"""Blinowski et al. 2024, chapter 6: schedulers compared on a spiky half hour, and ours beside them.

The production policies in the simulator. The parts are in `schedulers`.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from load.experiments.experiment import Experiment, Result, Settings, Table
from load.experiments.parallel_map import run_side_by_side
from load.experiments.published_figures import absent, reported_figures
from load.experiments.schedulers import plot
from load.experiments.schedulers.runs import SchedulerTask, run_one
from load.experiments.schedulers.scheduler_configs import LINEUP
from load.experiments.schedulers.thesis_comparison import CLAIMS, by_seed
from load.experiments.schedulers.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from load.experiments.experiment import Cell
    from load.experiments.schedulers.runs import SchedulerResult

FILE: Final = "warsaw_facts.csv"
MACHINES: Final = 6
SEEDS: Final = (1, 2, 3, 4, 5)
_QUICK: Final = Workload(minutes=4, spikes=1)


def run(settings: Settings) -> Result:
    """Every scheduler on every seed, what the thesis reports of each change, and the plot."""
    facts = reported_figures(settings, FILE)
    workload = _QUICK if settings.is_quick else Workload()
    seeds = settings.seeds or (SEEDS[:1] if settings.is_quick else SEEDS)
    tasks = [SchedulerTask(name, seed, MACHINES, workload) for seed in seeds for name in LINEUP]
    outcomes = run_side_by_side(run_one, tasks, settings, what="runs")
    images = (plot.draw(outcomes, settings.out),) if settings.out is not None else ()
    tables = (_runs_table(outcomes, workload), _claims_table(outcomes, facts))
    return Result(tables, tuple(_notes(settings, workload, seeds, outcomes)), images)


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


def _runs_table(outcomes: Sequence[SchedulerResult], workload: Workload) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in LINEUP:
        runs = [each for each in outcomes if each.scheduler == name]
        rows.append((name, *(_spread([of(each) for each in runs]) for of in _COLUMNS.values())))
    return Table(
        f"Simulated, {workload.minutes} minutes, {MACHINES} machines: mean (least to most)",
        ("scheduler", *_COLUMNS),
        tuple(rows),
    )


def _claims_table(outcomes: Sequence[SchedulerResult], facts: Mapping[int, float]) -> Table:
    seeds = by_seed(outcomes)
    rows: list[tuple[Cell, ...]] = []
    for claim in CLAIMS:
        hold = sum(claim.holds(runs) for runs in seeds)
        reported = claim.reported(facts)
        direction = "less" if claim.is_fewer else "more"
        rows.append(
            (claim.section, claim.words, claim.unit,
             direction if claim.section != "ours" else None,
             None if reported is None else f"{reported:+g}",
             _spread([claim.change(runs) for runs in seeds]),
             f"{hold} of {len(seeds)}")
        )  # fmt: skip
    return Table(
        "Changes: the thesis's direction and size, and ours",
        ("section", "change", "unit", "thesis", "its size", "ours", "direction holds in seeds"),
        tuple(rows),
    )


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return _short(values[0])
    return f"{_short(fmean(values))} ({_short(min(values))} to {_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _notes(
    settings: Settings,
    workload: Workload,
    seeds: Sequence[int],
    outcomes: Sequence[SchedulerResult],
) -> list[str]:
    first = outcomes[0]
    notes = [
        f"seeds {', '.join(map(str, seeds))}; {workload.minutes} minutes at about "
        f"{workload.rate_per_min:g} requests per minute with {workload.spikes} spikes of two "
        f"minutes in which half of the functions are called {workload.height:g} times as often; "
        f"seed {first.seed} has {first.requests:,} requests",
        f"{MACHINES} machines of two models each, one request at a time, no batches; times of nine "
        "models on c5.18xlarge (tiger-simulator); late requests are answered all the same",
        f"requests that were not answered: {sum(each.unanswered for each in outcomes)}",
        f"CPU time of all runs: {sum(each.cpu_s for each in outcomes):.0f} s",
    ]
    if settings.file(FILE) is None:
        notes.append(absent(FILE))
    return notes


EXPERIMENT: Final = Experiment(
    "warsaw",
    "Blinowski et al. 2024, chapter 6: Baseline, Clockwork, round robin refined; predictive beside",
    run,
)
