"""When the requests of a plan are complete; Wolfrath et al. 2025, eq. 1.

A worker runs its requests in planned order; each takes its variant's latency there, and its swap
time where the variant before it differs. A short circuit takes no time and no place. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gateway.selection.window import Assignment, SelectionPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.selection.planning_problem import Floats, Ints, PlanningProblem, Step


def completions(problem: PlanningProblem, requests: Ints, variants: Ints, workers: Ints) -> Floats:
    """Completion of each request from its arrival, for plans [plans, requests] sorted by worker."""
    before = np.empty_like(variants)
    before[:, 0] = -2
    before[:, 1:] = variants[:, :-1]
    is_first = np.ones(workers.shape, bool)
    is_first[:, 1:] = workers[:, 1:] != workers[:, :-1]
    before = np.where(is_first, problem.loaded[workers], before)
    takes = problem.latency_s[workers, variants]
    takes = takes + np.where(before == variants, 0.0, problem.swap_s[workers, variants])
    ends = np.cumsum(takes, axis=1)
    # What other workers do before this one in the row does not delay it.
    others = np.maximum.accumulate(np.where(is_first, ends - takes, 0.0), axis=1)
    ends = ends - others + problem.free_s[workers]
    return np.asarray(ends + problem.age_s[requests])


def utilities(
    problem: PlanningProblem, requests: Ints, variants: Ints, completion_s: Floats
) -> Floats:
    """Expected utility of each request (eq. 2)."""
    late = problem.penalty_of(requests, completion_s)
    return np.asarray(problem.accuracy[requests, variants] * (1.0 - late))


def plan_of(problem: PlanningProblem, steps: Sequence[Step]) -> SelectionPlan:
    """The plan that consists of these steps, in their order on each worker."""
    if not steps:
        return SelectionPlan(())
    table = np.array(sorted(steps, key=lambda step: step.worker))
    requests, variants, workers = (table[:, at][None, :] for at in range(3))
    ends = completions(problem, requests, variants, workers)
    values = utilities(problem, requests, variants, ends)
    aware = problem.options.is_data_aware
    return SelectionPlan(
        tuple(
            Assignment(
                problem.requests[request].id,
                problem.variants[variant],
                problem.workers[worker],
                float(ends[0, at]),
                float(problem.accuracy[request, variant]),
                float(values[0, at]),
            )
            for at, (request, variant, worker) in enumerate(table.tolist())
        ),
        missing_evidence=sum(each is None for each in problem.theta) if aware else 0,
    )
