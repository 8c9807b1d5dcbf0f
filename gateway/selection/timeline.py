"""When the requests of a plan are complete, and their utility; Wolfrath et al. 2025, eq. 1 to 3.

A worker runs its requests in planned order; each takes its variant's latency there, and its swap
time where the variant before it differs. A short circuit takes no time and no place. Many plans are
evaluated at once: arrays [plans, requests] of rows of the step table, sorted by worker. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gateway.selection.planning_problem import Step, penalty_by_kind, step_table
from gateway.selection.window import Assignment, SelectionPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.selection.planning_problem import Floats, Ints, PlanningProblem, StepTable


def completions(problem: PlanningProblem, table: StepTable, plans: Ints) -> Floats:
    """Completion of each step, from the arrival of its request."""
    variants, takes = table.variant[plans], table.latency_s[plans]
    is_same = np.empty(plans.shape, bool)
    np.equal(variants[:, 1:], variants[:, :-1], out=is_same[:, 1:])
    workers = table.worker[plans]
    is_first = np.ones(plans.shape, bool)
    np.not_equal(workers[:, 1:], workers[:, :-1], out=is_first[:, 1:])
    np.copyto(is_same, problem.loaded[workers] == variants, where=is_first)
    takes += np.where(is_same, 0.0, table.swap_s[plans])
    ends = np.cumsum(takes, axis=1)
    # What other workers do before this one in the row does not delay it.
    others = np.maximum.accumulate(np.where(is_first, ends - takes, 0.0), axis=1)
    ends += table.age_s[plans] + table.around_s[plans] - others + problem.free_s[workers]
    return ends


def utilities(
    problem: PlanningProblem, table: StepTable, plans: Ints, completion_s: Floats
) -> Floats:
    """Expected utility of each step."""
    late = penalty_by_kind(
        problem.penalties, table.penalty_kind[plans], table.deadline_s[plans], completion_s
    )
    return np.asarray(table.accuracy[plans] * (1.0 - late))


def as_rows(problem: PlanningProblem, table: StepTable, steps: Sequence[Step]) -> Ints:
    """Steps as rows of the table, sorted by worker."""
    places = [
        {
            pair: at
            for at, pair in enumerate(
                zip(each.variants.tolist(), each.workers.tolist(), strict=True)
            )
        }
        for each in problem.choices
    ]
    firsts = table.first.tolist()
    return np.array([
        firsts[step.request]
        + places[problem.application_of[step.request]][step.variant, step.worker]
        for step in sorted(steps, key=lambda each: each.worker)
    ])  # fmt: skip


def as_steps(table: StepTable, rows: Ints) -> list[Step]:
    columns = (table.request[rows], table.variant[rows], table.worker[rows])
    return [Step(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]


def plan_of(problem: PlanningProblem, steps: Sequence[Step]) -> SelectionPlan:
    """The plan that consists of these steps, in their order on each worker."""
    if not steps:
        return SelectionPlan(())
    table = step_table(problem)
    rows = as_rows(problem, table, steps)
    ends = completions(problem, table, rows[None])
    values = utilities(problem, table, rows[None], ends)[0].tolist()
    aware = problem.options.is_data_aware
    return SelectionPlan(
        tuple(
            Assignment(
                problem.requests[step.request].id,
                problem.variants[step.variant],
                problem.workers[step.worker],
                end,
                float(problem.accuracy[step.request, step.variant]),
                value,
            )
            for step, end, value in zip(
                as_steps(table, rows), ends[0].tolist(), values, strict=True
            )
        ),
        missing_evidence=sum(each is None for each in problem.theta) if aware else 0,
    )
