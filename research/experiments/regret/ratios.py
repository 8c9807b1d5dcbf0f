"""Each policy against the best fixed one of every cell, and the marks that `auto` must reach."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

import numpy as np

from research.experiments.regret.runs import AUTO, FIXED, IN_ORDER, RegretResult

ByPolicy = Mapping[str, RegretResult]
"""Results of one cell, by policy."""

_MIN_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Regret:
    """One policy in one cell: its measures over the least of the fixed policies."""

    cell: int
    mean: float
    """Ratio of mean latencies; 1: as good as the best fixed policy, below: better."""
    p99: float
    """Ratio of 99th percentiles."""
    missed_points: float
    """Percentage points of deadlines missed, more than the least."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Ratios of one measure over all cells."""

    geometric_mean: float
    median: float
    worst: float
    over: tuple[float, ...]
    """Share of cells beyond each limit."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A target of the experiment."""

    text: str
    allowed: float
    found: float

    @property
    def is_reached(self) -> bool:
        return self.found <= self.allowed


def by_cell(results: Sequence[RegretResult]) -> dict[int, ByPolicy]:
    """The results of each cell that has all fixed policies."""
    found: dict[int, dict[str, RegretResult]] = {}
    for each in results:
        found.setdefault(each.cell, {})[each.policy] = each
    return {cell: runs for cell, runs in found.items() if all(name in runs for name in FIXED)}


def regrets(cells: Mapping[int, ByPolicy], policy: str) -> list[Regret]:
    """Of the cells in which the policy ran.

    Each measure is compared with the fixed policy that is best in this measure.
    """
    return [
        Regret(
            cell,
            max(_MIN_S, runs[policy].mean_s) / max(_MIN_S, _least(runs, "mean_s")),
            max(_MIN_S, runs[policy].p99_s) / max(_MIN_S, _least(runs, "p99_s")),
            100 * (runs[policy].missed - _least(runs, "missed")),
        )
        for cell, runs in cells.items()
        if policy in runs
    ]


def _least(runs: ByPolicy, measure: str) -> float:
    values: list[float] = [getattr(runs[name], measure) for name in FIXED]
    return min(values)


def spread(values: Sequence[float], limits: Sequence[float]) -> Spread:
    """Of ratios, at least one."""
    return Spread(
        geometric_mean(values),
        median(values),
        max(values),
        tuple(fmean(value > limit for value in values) for limit in limits),
    )


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def best_single(cells: Mapping[int, ByPolicy]) -> str:
    """The fixed policy with the lowest geometric mean of ratios over all cells."""
    return min(FIXED, key=lambda name: geometric_mean([each.mean for each in regrets(cells, name)]))


def against(cells: Mapping[int, ByPolicy], policy: str, other: str) -> float:
    """Geometric mean of one policy's mean latency over another's, less 1."""
    ratios = [
        max(_MIN_S, runs[policy].mean_s) / max(_MIN_S, runs[other].mean_s)
        for runs in cells.values()
        if policy in runs and other in runs
    ]
    return geometric_mean(ratios) - 1


def marks(cells: Mapping[int, ByPolicy], with_deadline: set[int]) -> list[Mark]:
    """The marks of `auto`; `with_deadline` are the numbers of the cells with deadlines.

    p99 counts in cells without deadlines, elsewhere it is often the deadline itself.
    """
    found = regrets(cells, AUTO)
    means = [each.mean for each in found]
    tails = [each.p99 for each in found if each.cell not in with_deadline]
    missed = [each.missed_points for each in found if each.cell in with_deadline]
    best = best_single(cells)
    found_marks = [
        Mark("cells with a mean over 3 % worse, %", 2.0, _percent_over(means, 1.03)),
        Mark("cells with a mean over 8 % worse, %", 0.0, _percent_over(means, 1.08)),
        Mark("cells with a p99 over 10 % worse, %", 5.0, _percent_over(tails, 1.10)),
        Mark("cells with over 1 point more deadlines missed, %", 0.0, _percent_over(missed, 1.0)),
        Mark(
            f"mean against {best}, which gets the same queue order, %",
            -5.0,
            100 * against(cells, AUTO, best),
        ),
    ]
    if any(IN_ORDER in runs for runs in cells.values()):
        found_marks.append(
            Mark(f"mean against {IN_ORDER}, %", -15.0, 100 * against(cells, AUTO, IN_ORDER))
        )
    return found_marks


def _percent_over(values: Sequence[float], limit: float) -> float:
    return 100 * fmean(value > limit for value in values) if values else 0.0
