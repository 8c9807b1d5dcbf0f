"""The experiment regret: how far `auto` is from the best fixed policy, in clusters drawn at random.

Simulated with the production policies.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Final

from research.experiments.harness.experiment import (
    Cell,
    Experiment,
    ExperimentError,
    Result,
    Settings,
    Table,
)
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.harness.rendering import listed
from research.experiments.regret import cell_file
from research.experiments.regret.cells import Half, RegretCell, cells, drawn_cell
from research.experiments.regret.live_slice import live_tables
from research.experiments.regret.load_counts import SEEDS, load_table
from research.experiments.regret.plots import draw
from research.experiments.regret.ratios import (
    ByPolicy,
    Regret,
    against,
    best_single,
    by_cell,
    marks,
    regrets,
    spread,
)
from research.experiments.regret.runs import (
    AUTO,
    FIXED,
    POLICIES,
    WITH_AUTOSCALER,
    WRONG_FORECASTS,
    RegretResult,
    RegretTask,
    simulate,
)
from research.experiments.regret.small_cases import optimum_table

_SEEDS: Final = (1, 2, 3, 4, 5)
_CELLS: Final = 400
_QUICK_CELLS: Final = 24
_EVERY: Final[Mapping[str, int]] = {
    **dict.fromkeys(WITH_AUTOSCALER, 4),
    **dict.fromkeys(WRONG_FORECASTS, 20),
}
"""Policies with an autoscaler take most of the time: by default they run in every fourth or
twentieth cell."""
_WORST: Final = 12


def run(settings: Settings) -> Result:
    """All cells under all policies: ratios, marks, and the cells that `auto` is worst in."""
    seeds = settings.seeds or (_SEEDS[:2] if settings.is_quick else _SEEDS)
    chosen = _chosen_cells(settings)
    results = _results(chosen, seeds, settings)
    found = by_cell(results)
    tables: list[Table] = []
    if found:
        tables += [_means_table(found), _tails_table(found, chosen)]
        if any(AUTO in runs for runs in found.values()):
            tables += [_marks_table(found, chosen), _worst_table(found, chosen)]
    if not settings.cells.is_part:
        load_seeds = SEEDS[:2] if settings.is_quick else SEEDS
        tables += [optimum_table(settings), load_table(load_seeds), *live_tables(settings)]
    images: tuple[Path, ...] = ()
    if settings.out is not None:
        cell_file.write(settings.out, chosen, results, seeds)
        images = draw(found, chosen, settings.out) if found else ()
    notes = _notes(settings, chosen, results, seeds)
    if not found:
        notes.append(f"no table: a cell needs runs of all fixed policies ({', '.join(FIXED)})")
    return Result(tuple(tables), tuple(notes), images)


def _chosen_cells(settings: Settings) -> dict[int, RegretCell]:
    wanted = settings.cells
    if wanted.numbers:
        return {number: drawn_cell(number) for number in wanted.numbers}
    count = wanted.count or (_QUICK_CELLS if settings.is_quick else _CELLS)
    return {each.number: each for each in islice(cells(Half(wanted.half)), count)}


def _results(
    chosen: Mapping[int, RegretCell], seeds: tuple[int, ...], settings: Settings
) -> list[RegretResult]:
    """New runs, and those of an earlier experiment for policies that do not run again."""
    given = settings.cells.policies
    names = given or POLICIES
    if unknown := [name for name in names if name not in POLICIES]:
        raise ExperimentError(f"--policy must be one of {', '.join(POLICIES)}, was {unknown[0]!r}")
    earlier: list[RegretResult] = []
    if settings.cells.reused is not None:
        earlier = [
            each
            for each in cell_file.read(settings.cells.reused, seeds)
            if each.cell in chosen and each.policy not in names
        ]
    tasks = [
        RegretTask(name, cell, seeds)
        for place, cell in enumerate(chosen.values())
        for name in names
        if given or place % _EVERY.get(name, 1) == 0
    ]
    return [*earlier, *parallel_map(simulate, tasks, settings, what="cells x policies")]


def _means_table(found: Mapping[int, ByPolicy]) -> Table:
    best = best_single(found)
    rows: list[tuple[Cell, ...]] = []
    for name, mine in _by_policy(found):
        mean = spread([each.mean for each in mine], (1.03, 1.08))
        runs = [found[each.cell][name] for each in mine]
        loads = sum(each.loads for each in runs) / sum(each.requests for each in runs)
        rows.append(
            (
                name,
                len(mine),
                _percent(mean.geometric_mean),
                _percent(mean.median),
                _percent(mean.worst),
                *(100 * share for share in mean.over),
                None if name == best else _percent(1 + against(found, name, best)),
                100 * loads,
            )
        )
    return Table(
        f"Mean latency over that of the best fixed policy of each cell, less 1, in %; best single "
        f"policy: {best}",
        (
            "policy",
            "cells",
            "geometric mean",
            "median",
            "worst",
            "cells over 3 %",
            "cells over 8 %",
            f"against {best}",
            "loads per 100 requests",
        ),
        tuple(rows),
    )


def _tails_table(found: Mapping[int, ByPolicy], chosen: Mapping[int, RegretCell]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, mine in _by_policy(found):
        tails = [each.p99 for each in mine if chosen[each.cell].deadline_s is None]
        missed = [each.missed_points for each in mine if chosen[each.cell].deadline_s is not None]
        row: list[Cell] = [name]
        if tails:
            tail = spread(tails, (1.10,))
            row += [_percent(tail.median), _percent(tail.worst), 100 * tail.over[0]]
        if missed:
            row += [median(missed), max(missed), 100 * fmean(each > 1 for each in missed)]
        rows.append((*row, *(None,) * (7 - len(row))))
    return Table(
        "p99 in cells without deadlines, in %, and points of deadlines missed in the others, "
        "against the fixed policy that is best in it",
        (
            "policy",
            "p99: median",
            "worst",
            "cells over 10 %",
            "missed: median",
            "worst points",
            "cells over 1 point",
        ),
        tuple(rows),
    )


def _by_policy(found: Mapping[int, ByPolicy]) -> list[tuple[str, list[Regret]]]:
    """The policies that ran."""
    return [(name, mine) for name in POLICIES if (mine := regrets(found, name))]


def _marks_table(found: Mapping[int, ByPolicy], chosen: Mapping[int, RegretCell]) -> Table:
    with_deadline = {number for number, cell in chosen.items() if cell.deadline_s is not None}
    return Table(
        "Marks of auto",
        ("mark", "allowed", "found", "reached"),
        tuple(
            (each.text, each.allowed, each.found, "yes" if each.is_reached else "no")
            for each in marks(found, with_deadline)
        ),
    )


def _worst_table(found: Mapping[int, ByPolicy], chosen: Mapping[int, RegretCell]) -> Table:
    """The cells with auto's highest mean latency against the best fixed policy."""
    worst = sorted(regrets(found, AUTO), key=lambda each: -each.mean)[:_WORST]
    rows: list[tuple[Cell, ...]] = []
    for each in worst:
        cell, runs = chosen[each.cell], found[each.cell]
        best = min(FIXED, key=lambda name: runs[name].mean_s)
        rows.append(
            (
                cell.number,
                _percent(each.mean),
                _percent(each.p99),
                each.missed_points,
                runs[AUTO].mean_s,
                best,
                runs[best].mean_s,
                runs[AUTO].loads,
                runs[best].loads,
                len(cell.slots),
                cell.slots[0],
                len(cell.sizes),
                cell.memory,
                cell.load_s,
                cell.infer_s,
                cell.trace,
            )
        )
    return Table(
        "The cells that auto is worst in",
        (
            "cell",
            "mean %",
            "p99 %",
            "missed points",
            "mean s",
            "best fixed policy",
            "its mean s",
            "loads",
            "its loads",
            "pods",
            "slots",
            "models",
            "memory",
            "load s",
            "infer s",
            "trace",
        ),
        tuple(rows),
    )


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"


def _notes(
    settings: Settings,
    chosen: Mapping[int, RegretCell],
    results: Sequence[RegretResult],
    seeds: Sequence[int],
) -> list[str]:
    requests = sum(each.requests for each in results)
    return [
        f"simulated: {len(chosen)} cells, half {settings.cells.half}, seeds {listed(seeds)} "
        f"pooled; {requests:,} requests, {sum(each.cpu_s for each in results):.0f} s of CPU time",
        "each measure is compared with the fixed policy that is best in it; p99 in cells without "
        "deadlines, missed in the others; a request that failed counts with its deadline",
        f"{cell_file.NAME}.parquet and {cell_file.NAME}.csv hold all cells with their parameters",
    ]


EXPERIMENT: Final = Experiment(
    "regret",
    "auto against the best fixed policy of each of 400 clusters drawn at random",
    run,
    has_live_part=True,
    has_cells=True,
)
