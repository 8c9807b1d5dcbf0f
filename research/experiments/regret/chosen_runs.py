"""The cells, seeds and runs that a command asks for, and those of an earlier run of it."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from registry.policy_names import ROUTING
from research.experiments.harness.experiment import ExperimentError, Settings
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.harness.rendering import listed
from research.experiments.regret import cell_file
from research.experiments.regret.cells import Half, RegretCell, cells, drawn_cell
from research.experiments.regret.runs import (
    TWIN,
    WITH_AUTOSCALER,
    RegretResult,
    RegretTask,
    simulate,
)

_SEEDS: Final = (1, 2, 3, 4, 5)
_QUICK_CELLS: Final = 24


def chosen_seeds(settings: Settings) -> tuple[int, ...]:
    chosen = settings.seeds or (_SEEDS[:2] if settings.is_quick else _SEEDS)
    return tuple(dict.fromkeys(chosen))


def chosen_cells(settings: Settings, count: int) -> dict[int, RegretCell]:
    """By number; `count` of them unless the settings say how many."""
    wanted = settings.cells
    if wanted.numbers:
        return {number: drawn_cell(number) for number in wanted.numbers}
    count = wanted.count or (_QUICK_CELLS if settings.is_quick else count)
    return {each.number: each for each in islice(cells(Half(wanted.half)), count)}


def earlier_results(chosen: Mapping[int, RegretCell], settings: Settings) -> list[RegretResult]:
    """Those of `--reuse` in the chosen cells. Raises ExperimentError."""
    if settings.cells.reused is None:
        return []
    found = cell_file.read(settings.cells.reused, chosen_seeds(settings))
    return [each for each in found if each.cell in chosen]


def new_results(
    names: Sequence[str],
    chosen: Mapping[int, RegretCell],
    settings: Settings,
    every: Mapping[str, int],
) -> list[RegretResult]:
    """Run policies, plug-ins included, in the chosen cells; some only in `every` nth one.

    Raises ExperimentError for a policy that is not known.
    """
    known = (*ROUTING, *WITH_AUTOSCALER, TWIN)
    if unknown := [name for name in names if name not in known]:
        raise ExperimentError(f"--policy must be one of {', '.join(known)}, was {unknown[0]!r}")
    for name in names:
        if name in ROUTING and (problem := ROUTING.problem(name)):
            raise ExperimentError(problem)
    tasks = [
        RegretTask(name, cell, seed)
        for place, cell in enumerate(chosen.values())
        for name in dict.fromkeys(names)
        for seed in chosen_seeds(settings)
        if place % every.get(name, 1) == 0
    ]
    return parallel_map(simulate, tasks, settings, what="cells x policies x seeds")


def run_notes(
    settings: Settings, chosen: Mapping[int, RegretCell], results: Sequence[RegretResult]
) -> list[str]:
    requests = sum(each.requests for each in results)
    return [
        f"simulated: {len(chosen)} cells, half {settings.cells.half}, seeds "
        f"{listed(chosen_seeds(settings))}; {requests:,} requests, "
        f"{sum(each.cpu_s for each in results):.0f} s of CPU time",
        f"{cell_file.NAME}.parquet and {cell_file.NAME}.csv hold all runs with their cells' "
        "parameters",
    ]
