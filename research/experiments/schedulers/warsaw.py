"""The experiment warsaw: schedulers compared on half an hour of requests with spikes.

Reproduces Blinowski et al. 2024, chapter 6, with the thesis's rules and the production loading
policies in the simulator, and adds the scheduler `predictive`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Final

from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.harness.published_figures import absent_note, published_figures
from research.experiments.harness.rendering import listed, spread
from research.experiments.schedulers.figures import draw_machines, draw_schedulers
from research.experiments.schedulers.runs import SchedulerResult, SchedulerTask, simulate
from research.experiments.schedulers.scheduler_configs import OF_THESIS, ROUND_ROBIN, SCHEDULERS
from research.experiments.schedulers.setting import MAIN, VARIED
from research.experiments.schedulers.thesis_comparison import CLAIMS, OWN_SECTION, by_seed
from research.experiments.schedulers.workload import BIN_S, Workload

FILE: Final = "warsaw_facts.csv"
_SEEDS: Final = (1, 2, 3, 4, 5)
_QUICK: Final = Workload(minutes=4, spikes=1)
_VARIED_SEEDS: Final = 2
_VARIED_WORKLOAD: Final = Workload(minutes=8, spikes=1)
_QUICK_SETTINGS: Final = 3
_MACHINE: Final = "machine-00"
_USAGE_MINUTES: Final = 5
_DRAWN: Final = (next(iter(ROUND_ROBIN)), list(ROUND_ROBIN)[-1])
"""Figures 6.3 and 6.12: plain round robin, and all refinements."""
_COLUMNS: Final[Mapping[str, Callable[[SchedulerResult], float]]] = {
    "missed %": lambda run: 100 * run.missed,
    "steady %": lambda run: 100 * run.missed_steady,
    "in spikes %": lambda run: 100 * run.missed_in_spikes,
    "mean (s)": lambda run: run.mean_s,
    "p40 (s)": lambda run: run.p40_s,
    "p99 (s)": lambda run: run.p99_s,
    "longest (s)": lambda run: run.longest_s,
    "to schedule (s)": lambda run: run.wait_s,
    "p99 to schedule (s)": lambda run: run.p99_wait_s,
    "per minute": lambda run: run.per_minute,
    "loads": lambda run: run.loads,
    "loading (s)": lambda run: run.load_s,
}


def run(settings: Settings) -> Result:
    """Every scheduler on every seed, the thesis's reported changes, other settings, the plots."""
    facts = published_figures(settings, FILE)
    workload = _QUICK if settings.is_quick else Workload()
    seeds = settings.seeds or (_SEEDS[:1] if settings.is_quick else _SEEDS)
    tasks = _tasks(workload, seeds)
    found = parallel_map(simulate, [*tasks, *_varied_tasks(settings, seeds)], settings, what="runs")
    results, varied = found[: len(tasks)], found[len(tasks) :]
    images: tuple[Path, ...] = ()
    if settings.out is not None:
        drawn = [each for each in results if each.usage]
        images = (
            draw_schedulers(results, settings.out),
            draw_machines(drawn, _usage_window_s(workload, seeds[0]), settings.out),
        )
    tables = (
        _runs_table(results, workload),
        _claims_table(results, facts),
        _misses_table(varied),
        _varied_claims_table(varied),
    )
    return Result(tables, tuple(_notes(settings, workload, seeds, found)), images)


def _tasks(workload: Workload, seeds: Sequence[int]) -> list[SchedulerTask]:
    tasks = [SchedulerTask(name, seed, workload) for seed in seeds for name in SCHEDULERS]
    return [
        replace(each, machine=_MACHINE)
        if each.seed == seeds[0] and each.scheduler in _DRAWN
        else each
        for each in tasks
    ]


def _varied_tasks(settings: Settings, seeds: Sequence[int]) -> list[SchedulerTask]:
    workload = _QUICK if settings.is_quick else _VARIED_WORKLOAD
    varied = VARIED[:_QUICK_SETTINGS] if settings.is_quick else VARIED
    return [
        SchedulerTask(name, seed, workload, setting)
        for setting in varied
        for seed in seeds[:_VARIED_SEEDS]
        for name in OF_THESIS
    ]


def _usage_window_s(workload: Workload, seed: int) -> tuple[float, float]:
    """The minutes around the first spike."""
    first = workload.spike_minutes(seed)[0][0]
    begin = max(0, min(first - 1, workload.minutes - _USAGE_MINUTES))
    return BIN_S * begin, BIN_S * min(workload.minutes, begin + _USAGE_MINUTES)


def _runs_table(results: Sequence[SchedulerResult], workload: Workload) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in SCHEDULERS:
        runs = [each for each in results if each.scheduler == name]
        rows.append((name, *(_spread([of(each) for each in runs]) for of in _COLUMNS.values())))
    return Table(
        f"Simulated, {workload.minutes} minutes, {MAIN.machines} machines: "
        "mean (lowest to highest)",
        ("scheduler", *_COLUMNS),
        tuple(rows),
    )


def _claims_table(results: Sequence[SchedulerResult], facts: Mapping[int, float]) -> Table:
    seeds = by_seed(results)
    rows: list[tuple[Cell, ...]] = []
    for claim in CLAIMS:
        reported = claim.reported(facts)
        direction = "less" if claim.is_fewer else "more"
        rows.append(
            (
                claim.section,
                claim.label,
                claim.unit,
                direction if claim.section != OWN_SECTION else None,
                None if reported is None else f"{reported:+g}",
                _spread([claim.change(runs) for runs in seeds]),
                f"{sum(claim.holds(runs) for runs in seeds)} of {len(seeds)}",
            )
        )
    return Table(
        "Changes: direction and size in the thesis, and in these runs",
        ("section", "change", "unit", "thesis", "its size", "ours", "direction holds in seeds"),
        tuple(rows),
    )


def _by_setting(
    varied: Sequence[SchedulerResult],
) -> dict[str, list[Mapping[str, SchedulerResult]]]:
    """By setting: the runs of each seed."""
    labels = dict.fromkeys(each.setting for each in varied)
    return {label: by_seed([each for each in varied if each.setting == label]) for label in labels}


def _misses_table(varied: Sequence[SchedulerResult]) -> Table:
    settings = _by_setting(varied)
    rows = [
        (
            name,
            *(
                f"{_short(fmean(100 * runs[name].missed for runs in seeds))}; "
                f"{_short(max(runs[name].longest_s for runs in seeds))}"
                for seeds in settings.values()
            ),
        )
        for name in OF_THESIS
    ]
    title = "Machines x models on each: deadlines missed (%), mean of seeds; longest request (s)"
    return Table(title, ("scheduler", *settings), tuple(rows))


def _varied_claims_table(varied: Sequence[SchedulerResult]) -> Table:
    settings = _by_setting(varied)
    rows = [
        (
            claim.section,
            claim.label,
            claim.unit,
            *(
                f"{sum(claim.holds(runs) for runs in seeds)} of {len(seeds)}: "
                f"{_short(fmean(claim.change(runs) for runs in seeds))}"
                for seeds in settings.values()
            ),
        )
        for claim in CLAIMS
        if claim.section != OWN_SECTION
    ]
    title = "The thesis's changes by setting: seeds in which the direction holds, and mean change"
    return Table(title, ("section", "change", "unit", *settings), tuple(rows))


def _spread(values: Sequence[float]) -> str:
    return _short(values[0]) if len(values) == 1 else spread(values, fmean, _short)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _notes(
    settings: Settings, workload: Workload, seeds: Sequence[int], results: Sequence[SchedulerResult]
) -> list[str]:
    first = results[0]
    notes = [
        f"seeds {listed(seeds)}; {workload.minutes} minutes at about {workload.rate_per_min:g} "
        f"requests per minute with {workload.spikes} spikes of two minutes in which half of the "
        f"functions are called {workload.height:g} times as often; seed {first.seed} has "
        f"{first.requests:,} requests",
        f"{MAIN.machines} machines of {MAIN.models_each} models each, one request at a time, no "
        "batches; times of nine models on c5.18xlarge (tiger-simulator); late requests are served, "
        "too; the thesis's rules start inferences, and a machine does one action at a time",
        f"failed requests: {sum(each.unanswered for each in results)}",
        f"CPU time of all runs: {sum(each.cpu_s for each in results):.0f} s",
    ]
    if not settings.is_quick:
        notes.append(
            f"other settings: {_VARIED_WORKLOAD.minutes} minutes, {_VARIED_WORKLOAD.spikes} "
            f"spike, {_VARIED_SEEDS} seeds"
        )
    if settings.file(FILE) is None:
        notes.append(absent_note(FILE))
    return notes


EXPERIMENT: Final = Experiment(
    "warsaw",
    "Blinowski et al. 2024, chapter 6: Baseline, Clockwork, round robin refined; predictive beside",
    run,
)
