"""The experiment regret: how far `auto` is from the best fixed policy, in clusters drawn at random.

Simulated with the production policies.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Final

from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.regret import cell_file
from research.experiments.regret.cells import RegretCell
from research.experiments.regret.chosen_runs import (
    chosen_cells,
    earlier_results,
    new_results,
    run_notes,
)
from research.experiments.regret.live_slice import live_tables
from research.experiments.regret.plots import draw
from research.experiments.regret.ratios import (
    ByPolicy,
    Regret,
    by_cell,
    geometric_mean,
    marks,
    percent,
    pooled,
    regrets,
)
from research.experiments.regret.runs import AUTO, FIXED, POLICIES, WITH_AUTOSCALER
from research.experiments.regret.small_cases import optimum_table

_CELLS: Final = 400
_EVERY: Final = dict.fromkeys(WITH_AUTOSCALER, 4)
"""Policies with an autoscaler take most of the time: by default they run in every fourth cell."""
_WORST: Final = 12


def run(settings: Settings) -> Result:
    """All cells under all policies: ratios, marks, and the cells that `auto` is worst in."""
    chosen = chosen_cells(settings, _CELLS)
    names = settings.cells.policies or POLICIES
    earlier = [each for each in earlier_results(chosen, settings) if each.policy not in names]
    every = {} if settings.cells.policies else _EVERY
    results = [*earlier, *new_results(names, chosen, settings, every)]
    found = by_cell(results, FIXED)
    tables: list[Table] = []
    if found:
        tables += [_means_table(found), _tails_table(found, chosen)]
        if any(AUTO in runs for runs in found.values()):
            tables += [_marks_table(found, chosen), _worst_table(found, chosen)]
    if not settings.cells.is_part:
        tables += [optimum_table(settings), *live_tables(settings)]
    images: tuple[Path, ...] = ()
    if settings.out is not None:
        cell_file.write(settings.out, chosen, results)
        images = (draw(found, settings.out),) if found else ()
    notes = [
        *run_notes(settings, chosen, results),
        "each measure is compared with the fixed policy that is best in it; a cell is over a limit "
        "if it is worse by two standard errors of the differences by seed as well; p99 in cells "
        "without deadlines, missed in the others; a request that failed counts with its deadline",
    ]
    if not found:
        notes.append(f"no table: a cell needs runs of all fixed policies ({', '.join(FIXED)})")
    return Result(tuple(tables), tuple(notes), images)


def _means_table(found: Mapping[int, ByPolicy]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, mine in _by_policy(found):
        means = [each.mean for each in mine]
        ratios = [each.ratio for each in means]
        runs = [run for each in mine for run in found[each.cell][name]]
        rows.append(
            (
                name,
                len(mine),
                _percent(geometric_mean(ratios)),
                _percent(median(ratios)),
                _percent(max(ratios)),
                percent(means, lambda each: each.ratio > 1.03),
                percent(means, lambda each: each.ratio > 1.08),
                100 * sum(each.loads for each in runs) / sum(each.requests for each in runs),
            )
        )
    return Table(
        "Mean latency over that of the best fixed policy of each cell, less 1, in %",
        (
            "policy",
            "cells",
            "geometric mean",
            "median",
            "worst",
            "cells over 3 %",
            "cells over 8 %",
            "loads per 100 requests",
        ),
        tuple(rows),
    )


def _tails_table(found: Mapping[int, ByPolicy], chosen: Mapping[int, RegretCell]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, mine in _by_policy(found):
        tails = [each.p99 for each in mine if chosen[each.cell].deadline_s is None]
        missed = [each.missed for each in mine if chosen[each.cell].deadline_s is not None]
        row: list[Cell] = [name, None, None, None, None, None, None]
        if tails:
            ratios = [each.ratio for each in tails]
            row[1:4] = [
                _percent(median(ratios)),
                _percent(max(ratios)),
                percent(tails, lambda each: each.ratio > 1.10),
            ]
        if missed:
            points = [each.points for each in missed]
            row[4:] = [fmean(points), max(points), percent(missed, lambda each: each.points > 1)]
        rows.append(tuple(row))
    return Table(
        "p99 in cells without deadlines, in %, and points of deadlines missed in the others, "
        "against the fixed policy that is best in it",
        (
            "policy",
            "p99: median",
            "worst",
            "cells over 10 %",
            "missed: mean",
            "worst points",
            "cells over 1 point",
        ),
        tuple(rows),
    )


def _by_policy(found: Mapping[int, ByPolicy]) -> list[tuple[str, list[Regret]]]:
    """The policies that ran."""
    names = dict.fromkeys([*POLICIES, *(name for runs in found.values() for name in runs)])
    return [(name, mine) for name in names if (mine := regrets(found, name, FIXED))]


def _marks_table(found: Mapping[int, ByPolicy], chosen: Mapping[int, RegretCell]) -> Table:
    with_deadline = {number for number, cell in chosen.items() if cell.deadline_s is not None}
    return Table(
        "Marks of auto",
        ("mark", "allowed", "found", "without the test", "reached"),
        tuple(
            (each.text, each.allowed, each.found, each.untested, "yes" if each.is_reached else "no")
            for each in marks(regrets(found, AUTO, FIXED), with_deadline)
        ),
    )


def _worst_table(found: Mapping[int, ByPolicy], chosen: Mapping[int, RegretCell]) -> Table:
    """The cells with auto's highest mean latency against the best fixed policy."""
    worst = sorted(regrets(found, AUTO, FIXED), key=lambda each: -each.mean.ratio)[:_WORST]
    rows: list[tuple[Cell, ...]] = []
    for each in worst:
        cell, runs = chosen[each.cell], found[each.cell]
        best = min(FIXED, key=lambda name: pooled(runs[name], "mean_s"))
        rows.append(
            (
                cell.number,
                _percent(each.mean.ratio),
                "yes" if each.mean.is_worse else "no",
                _percent(each.p99.ratio),
                each.missed.points,
                each.mean.mine,
                best,
                each.mean.best,
                sum(run.loads for run in runs[AUTO]),
                sum(run.loads for run in runs[best]),
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
            "two errors",
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


EXPERIMENT: Final = Experiment(
    "regret",
    "auto against the best fixed policy of each of 400 clusters drawn at random",
    run,
    has_live_part=True,
    has_cells=True,
)
