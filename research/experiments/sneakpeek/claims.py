"""Measures of estimates and of optimal plans, which no policy's score shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from research.experiments.sneakpeek.demo_data import DemoApplication
from research.experiments.sneakpeek.runs import applications_in
from research.experiments.sneakpeek.workload import Workload, draw_window
from research.selection.best_order import best_order
from variants.planning.planning_problem import plan_of, planning_problem
from variants.planning.search import PLAIN, by_deadline
from variants.planning.window import JEFFREYS, accuracy_by_class_mix, class_probabilities

_MAX_PLANS = 10_000_000
"""Optimal plans, however long the search."""


def estimation_error(
    app: DemoApplication, k: int | None, alpha: float | Sequence[float] = JEFFREYS
) -> float:
    """Mean |estimated accuracy - recall for the true label| over variants and requests.

    Requests have the application's class mix. `k` None: the profiled accuracy; `alpha`: weights of
    the prior (section 6.3.3).
    """
    recall = np.array([each.recalls for each in app.variants])
    true = recall.T[app.labels]
    if k is None:
        estimates = np.tile([each.accuracy for each in app.variants], (len(app.labels), 1))
    else:
        estimates = accuracy_by_class_mix(recall, class_probabilities(app.evidence[k], alpha))
    counts = np.bincount(app.labels, minlength=len(app.mix))
    weights = np.array(app.mix)[app.labels] / counts[app.labels]
    return float((np.abs(estimates - true).mean(axis=1) * weights).sum())


@dataclass(frozen=True, slots=True)
class OptimumTask:
    folder: Path
    load: Workload
    seed: int
    windows: int


@dataclass(frozen=True, slots=True)
class OptimumShares:
    """Of optimal plans: each application together; of the rest, each class together."""

    together: int
    by_class: int
    windows: int


def optimum_shares(task: OptimumTask) -> OptimumShares:
    apps = applications_in(task.folder)
    together = by_class = 0
    for at in range(task.windows):
        drawn = draw_window(apps, task.load, np.random.default_rng((task.seed, at)))
        problem = planning_problem(drawn.window, PLAIN)
        steps = best_order(problem, by_deadline(problem), max_plans=_MAX_PLANS)
        assert steps is not None
        plan = plan_of(problem, steps)
        order = [drawn.truth[each.request] for each in plan.assignments]
        if _is_together([each.application for each in order]):
            together += 1
        elif _is_together([(each.application, each.label) for each in order]):
            by_class += 1
    return OptimumShares(together, by_class, task.windows)


def _is_together(kinds: Sequence[object]) -> bool:
    """True if equal items are neighbours."""
    runs = 1 + sum(left != right for left, right in pairwise(kinds))
    return runs == len(set(kinds))
