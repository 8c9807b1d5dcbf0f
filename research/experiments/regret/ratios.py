"""Each policy against the best of others in every cell, and the marks that `auto` must reach.

Seeds are paired: a policy is worse than another in a cell only where the mean of its differences by
seed is over two standard errors; otherwise the difference may be the seeds'.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Final, Literal

import numpy as np

from research.experiments.regret.runs import RegretResult

Runs = Sequence[RegretResult]
"""One policy in one cell: a run for each seed, in the order of seeds."""
ByPolicy = Mapping[str, Runs]
"""The runs of one cell."""
Measure = Literal["mean_s", "p99_s", "missed"]

_MIN_S: Final = 1e-6
_STANDARD_ERRORS: Final = 2.0
"""A two-sided test at about 5 %, with many seeds."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measure of a policy in a cell beside that of the other one that is best in it."""

    mine: float
    """Of all seeds' requests, like `best`."""
    best: float
    error: float
    """Standard error of the mean difference by seed; 0 with one seed."""
    difference: float
    """The mean by seed of mine less the best."""

    @property
    def ratio(self) -> float:
        """1: as good as the best other policy, below: better."""
        return max(_MIN_S, self.mine) / max(_MIN_S, self.best)

    @property
    def points(self) -> float:
        """Percentage points more than the best other policy; of shares."""
        return 100 * (self.mine - self.best)

    @property
    def is_worse(self) -> bool:
        return self.difference > _STANDARD_ERRORS * self.error

    @property
    def is_better(self) -> bool:
        return self.difference < -_STANDARD_ERRORS * self.error


@dataclass(frozen=True, slots=True)
class Regret:
    """One policy in one cell; each measure has a best policy of its own."""

    cell: int
    mean: Comparison
    p99: Comparison
    missed: Comparison


@dataclass(frozen=True, slots=True)
class Mark:
    """A target of the experiment, in percent or points."""

    text: str
    allowed: float
    found: float
    untested: float | None = None
    """With the cells whose difference may be the seeds'; None: the mark is about all cells."""

    @property
    def is_reached(self) -> bool:
        return self.found <= self.allowed


def by_cell(results: Sequence[RegretResult], required: Collection[str]) -> dict[int, ByPolicy]:
    """The results of each cell in which all `required` policies ran."""
    found: dict[int, dict[str, list[RegretResult]]] = {}
    for each in sorted(results, key=lambda each: each.seed):
        found.setdefault(each.cell, {}).setdefault(each.policy, []).append(each)
    return {cell: runs for cell, runs in found.items() if runs.keys() >= set(required)}


def regrets(cells: Mapping[int, ByPolicy], policy: str, others: Collection[str]) -> list[Regret]:
    """Of the cells in which the policy ran, beside at least one of the others."""
    return [
        Regret(
            cell,
            compare(runs[policy], rivals, "mean_s"),
            compare(runs[policy], rivals, "p99_s"),
            compare(runs[policy], rivals, "missed"),
        )
        for cell, runs in cells.items()
        if policy in runs and (rivals := [runs[name] for name in others if name in runs])
    ]


def compare(mine: Runs, others: Sequence[Runs], measure: Measure) -> Comparison:
    """All have the same seeds."""
    best = min(others, key=lambda runs: pooled(runs, measure))
    by_seed = [
        getattr(one, measure) - getattr(other, measure)
        for one, other in zip(mine, best, strict=True)
    ]
    error = stdev(by_seed) / sqrt(len(by_seed)) if len(by_seed) > 1 else 0.0
    return Comparison(pooled(mine, measure), pooled(best, measure), error, fmean(by_seed))


def pooled(runs: Runs, measure: Measure) -> float:
    """The mean over all requests; of percentiles that of the seeds, weighted by requests."""
    values = [getattr(each, measure) for each in runs]
    return fmean(values, weights=[each.requests for each in runs])


def percent(found: Sequence[Comparison], is_over: Callable[[Comparison], bool]) -> float:
    """Share of the cells in which a policy is over a limit and not by the seeds alone."""
    return 100 * fmean(each.is_worse and is_over(each) for each in found)


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def marks(found: Sequence[Regret], with_deadline: Collection[int]) -> list[Mark]:
    """The marks of `auto`; `with_deadline` are the numbers of the cells with deadlines.

    p99 counts in cells without deadlines, elsewhere it is often the deadline itself.
    """
    means = [each.mean for each in found]
    tails = [each.p99 for each in found if each.cell not in with_deadline]
    missed = [each.missed for each in found if each.cell in with_deadline]
    highest = max(each.ratio for each in means)
    worse = [each.ratio for each in means if each.is_worse]
    marked = [
        _share("cells with a mean over 3 % worse, %", 4.0, means, lambda each: each.ratio > 1.03),
        _share("cells with a mean over 8 % worse, %", 1.0, means, lambda each: each.ratio > 1.08),
        Mark(
            "mean of the worst cell, %",
            15.0,
            100 * (max(worse, default=min(1.0, highest)) - 1),
            100 * (highest - 1),
        ),
        Mark(
            "geometric mean of means, %",
            -11.0,
            100 * (geometric_mean([each.ratio for each in means]) - 1),
        ),
    ]
    if tails:
        text = "cells with a p99 over 10 % worse, %"
        marked.append(_share(text, 4.0, tails, lambda each: each.ratio > 1.10))
    if missed:
        text = "cells with over 1 point more deadlines missed, %"
        marked += [
            _share(text, 4.0, missed, lambda each: each.points > 1),
            Mark("points of deadlines missed more, mean", -1.0, fmean(e.points for e in missed)),
        ]
    return marked


def _share(
    text: str, allowed: float, found: Sequence[Comparison], is_over: Callable[[Comparison], bool]
) -> Mark:
    untested = 100 * fmean(map(is_over, found))
    return Mark(text, allowed, percent(found, is_over), untested)
