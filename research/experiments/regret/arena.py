"""The experiment arena: routing policies of peers, and of whoever enters one, beside `auto`.

In the cells of the experiment regret, with its halves, seeds and test; policies are plug-ins.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
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
from research.experiments.regret.ratios import (
    ByPolicy,
    Regret,
    by_cell,
    compare,
    geometric_mean,
    regrets,
)
from research.experiments.regret.runs import AUTO
from research.experiments.schedulers.scheduler_configs import CLOCKWORK

PEERS: Final = (
    "colocation-queueing",
    "remote-proxy",
    "knative",
    "ray-serve",
    "llm-d",
    "serverless-llm",
    "aibrix",
    "llama-swap",
    CLOCKWORK,
)
_CELLS: Final = 400
_LOST: Final = 1.03
"""Ratio of mean latencies above which a cell is listed."""


def run(settings: Settings) -> Result:
    """Run `auto`, all peers and the policies of `--policy`; `--reuse` has the others' runs."""
    chosen = chosen_cells(settings, _CELLS)
    entered = settings.cells.policies
    earlier = [each for each in earlier_results(chosen, settings) if each.policy not in entered]
    ran = {(each.policy, each.cell) for each in earlier}
    have = {name for name, _ in ran if all((name, number) in ran for number in chosen)}
    earlier = [each for each in earlier if each.policy in have]
    names = dict.fromkeys([*entered, *(name for name in (AUTO, *PEERS) if name not in have)])
    results = [*earlier, *new_results([*names], chosen, settings, {})]
    found = by_cell(results, {*have, *names})
    if settings.out is not None:
        cell_file.write(settings.out, chosen, results)
    tables = (_ranking(found, chosen), _lost_cells(found)) if found else ()
    return Result(
        tables,
        (
            *run_notes(settings, chosen, results),
            "mean and p99: over the other policy that is best in the cell, less 1, in %, geometric "
            "mean; p99 in cells without deadlines, missed in the others; clearly: by two standard "
            "errors of the differences by seed",
        ),
    )


def _ranking(found: Mapping[int, ByPolicy], chosen: Mapping[int, RegretCell]) -> Table:
    names = sorted(next(iter(found.values())))
    by_policy = {
        name: regrets(found, name, [other for other in names if other != name]) for name in names
    }
    ranked = sorted(names, key=lambda name: _mean(by_policy[name]))
    return Table(
        f"{len(names)} policies in {len(found)} cells",
        (
            "policy",
            "mean",
            "against auto",
            "p99",
            "deadlines missed, %",
            "loads per 100 requests",
            "best in cells",
            "clearly",
        ),
        tuple(_row(name, by_policy[name], found, chosen) for name in ranked),
    )


def _row(
    name: str,
    mine: Sequence[Regret],
    found: Mapping[int, ByPolicy],
    chosen: Mapping[int, RegretCell],
) -> tuple[Cell, ...]:
    against = [
        compare(runs[name], [runs[AUTO]], "mean_s").ratio
        for runs in found.values()
        if name != AUTO and AUTO in runs
    ]
    tails = [each.p99.ratio for each in mine if chosen[each.cell].deadline_s is None]
    missed = [each.missed.mine for each in mine if chosen[each.cell].deadline_s is not None]
    runs = [run for each in found.values() for run in each[name]]
    return (
        name,
        _percent(_mean(mine)),
        _percent(geometric_mean(against)) if against else None,
        _percent(geometric_mean(tails)) if tails else None,
        100 * fmean(missed) if missed else None,
        100 * sum(each.loads for each in runs) / sum(each.requests for each in runs),
        sum(each.mean.ratio < 1 for each in mine),
        sum(each.mean.is_better for each in mine),
    )


def _lost_cells(found: Mapping[int, ByPolicy]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for cell, runs in found.items():
        for name in runs.keys() - {AUTO}:
            lost = compare(runs[AUTO], [runs[name]], "mean_s")
            if lost.ratio > _LOST and lost.is_worse:
                rows.append((cell, name, _percent(lost.ratio), lost.mine, lost.best))
    return Table(
        "Cells in which auto is clearly slower than another policy, by over 3 %",
        ("cell", "policy", "auto's mean %", "auto s", "policy s"),
        tuple(sorted(rows)),
    )


def _mean(found: Sequence[Regret]) -> float:
    return geometric_mean([each.mean.ratio for each in found])


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"


EXPERIMENT: Final = Experiment(
    "arena",
    "routing policies of peers, and of your own, beside auto in regret's clusters",
    run,
    has_cells=True,
)
