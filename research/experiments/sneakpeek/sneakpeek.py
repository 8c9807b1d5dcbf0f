"""The experiment sneakpeek: figures 5 to 16 of Wolfrath et al. 2025 on real examples, simulated.

Each window is planned alone, at its end, and runs as planned. The paper prints no latencies: ours
are scaled by one factor that brings `lo-edf` to a mean utility of 0.40, on seeds of its own.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from registry.domain.application import SelectionPolicy
from research.experiments.harness.experiment import (
    Experiment,
    ExperimentError,
    Progress,
    Result,
    Settings,
    Table,
)
from research.experiments.sneakpeek.cold_variants import cold_variants
from research.experiments.sneakpeek.demo_data import profile_rows
from research.experiments.sneakpeek.figures import (
    Bench,
    applications,
    arrivals,
    deadlines,
    estimates,
    look_accuracy,
    main_table,
    mechanisms,
    optima,
    penalties,
    variation,
    workers,
)
from research.experiments.sneakpeek.plots import draw_deadlines
from research.experiments.sneakpeek.runs import Task, applications_in, run_task
from research.experiments.sneakpeek.workload import Workload

LO_EDF_UTILITY: Final = 0.40
_SCALE_SEEDS: Final = range(1001, 1011)
_SCALE_WINDOWS: Final = 4
_SCALE_STEPS: Final = 10
_SEEDS: Final = range(1, 21)


def run(settings: Settings) -> Result:
    """All figures; raises ExperimentError without the demo applications."""
    seeds = settings.seeds or tuple(_SEEDS)[: 2 if settings.is_quick else None]
    folder = settings.applications
    if folder is None:
        raise ExperimentError("the demo applications are missing: run `pilotlight experiment`")
    apps = applications_in(folder)
    scale = scale_of(folder, settings.progress)
    bench = Bench(
        replace(settings, seeds=seeds),
        folder,
        Workload(scale=scale),
        windows=1 if settings.is_quick else 3,
    )
    tables = [
        Table(
            "variants: profiled accuracy, and recall over classes",
            ("application", "variant", "accuracy", "lowest recall", "highest recall"),
            tuple(profile_rows(apps)),
        ),
        main_table(bench),
        estimates(apps),
        mechanisms(bench),
        *look_accuracy(bench),
        *deadlines(bench),
        *applications(bench),
        *arrivals(bench),
        penalties(bench),
        variation(bench),
        *workers(bench),
        optima(bench),
        cold_variants(bench),
    ]
    notes = (
        f"simulated; {len(seeds)} seeds of {bench.windows} windows per cell "
        f"({bench.main_windows} in figures 5-6 and 8); +- is a 95 % interval over seeds",
        f"factor of all latencies and swap times: {scale:.2f}, which brings lo-edf to "
        f"{LO_EDF_UTILITY:.2f} on seeds {_SCALE_SEEDS[0]}-{_SCALE_SEEDS[-1]}: latencies "
        "1.25, 5, 20 ms and swaps 2.5, 5, 10 ms before",
        "utility: recall for the true label, less the penalty; correct: share of right answers",
        "planning: processor time per window on this machine",
        *bench.notes,
    )
    images = (draw_deadlines(bench.by_deadline, settings.out),) if settings.out else ()
    return Result(tuple(tables), notes, images)


def scale_of(folder: Path, progress: Progress) -> float:
    """The factor of latencies that brings `lo-edf` to `LO_EDF_UTILITY`, by bisection."""
    low, high = 0.5, 20.0
    for step in range(_SCALE_STEPS):
        progress(step, _SCALE_STEPS, "scale of latencies")
        middle = (low + high) / 2
        load = Workload(scale=middle)
        scores = [
            run_task(Task(folder, load, SelectionPolicy.LO_EDF, None, seed, _SCALE_WINDOWS))
            for seed in _SCALE_SEEDS
        ]
        if sum(each.utility for each in scores) / len(scores) > LO_EDF_UTILITY:
            low = middle
        else:
            high = middle
    return (low + high) / 2


EXPERIMENT: Final = Experiment(
    "sneakpeek",
    "Wolfrath et al. 2025: which variant of an application serves a request",
    run,
    needs_applications=True,
)
