"""When the requests of a plan are complete, and their utility; Wolfrath et al. 2025, eq. 1 to 3.

A worker runs its requests in planned order; each takes its variant's latency there, and its swap
time where the variant before it differs. A short circuit takes no time and no place. Many plans are
evaluated at once: arrays [plans, requests] of rows of the step table, sorted by worker. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.selection.planning_problem import (
    Floats,
    Ints,
    PlanningProblem,
    Step,
    StepTable,
    penalty_by_kind,
)
from gateway.selection.utility import penalty
from gateway.selection.window import Assignment, SelectionPlan


def completions(problem: PlanningProblem, table: StepTable, plans: Ints) -> Floats:
    """Completion of each step, from the arrival of its request."""
    variants, takes = table.variant.take(plans), table.latency_s.take(plans)
    is_same = np.empty(plans.shape, bool)
    np.equal(variants[:, 1:], variants[:, :-1], out=is_same[:, 1:])
    if problem.has_one_worker:
        return _of_one_worker(problem, table, plans, variants, takes, is_same)
    workers = table.worker.take(plans)
    is_first = np.ones(plans.shape, bool)
    np.not_equal(workers[:, 1:], workers[:, :-1], out=is_first[:, 1:])
    np.copyto(is_same, problem.loaded.take(workers) == variants, where=is_first)
    swaps = table.swap_s.take(plans)
    swaps[is_same] = 0.0
    takes += swaps
    ends = np.cumsum(takes, axis=1)
    # What other workers do before this one in the row does not delay it.
    begins = ends - takes
    begins[~is_first] = 0.0
    ends -= np.maximum.accumulate(begins, axis=1)
    ends += table.beside_s.take(plans)
    ends += problem.free_s.take(workers)
    return ends


def _of_one_worker(
    problem: PlanningProblem, table: StepTable, plans: Ints, variants: Ints, takes: Floats,
    is_same: NDArray[np.bool_],
) -> Floats:  # fmt: skip
    """As `completions`, in half the time: only short circuits, which come last, are elsewhere."""
    np.equal(variants[:, 0], problem.loaded[0], out=is_same[:, 0])
    swaps = table.swap_s.take(plans)
    swaps[is_same] = 0.0
    takes += swaps
    beside = table.beside_s.take(plans)
    ends = np.add.accumulate(takes, axis=1)
    ends += beside
    ends += problem.free_s[0]
    if problem.options.short_circuit:
        np.copyto(ends, beside, where=variants == problem.short_circuit)
    return ends


def utilities(
    problem: PlanningProblem, table: StepTable, plans: Ints, completion_s: Floats
) -> Floats:
    """Expected utility of each step."""
    kinds, deadline_s = problem.penalties, table.deadline_s.take(plans)
    if len(kinds) == 1:
        late = penalty(kinds[0], deadline_s, completion_s)
    else:
        late = penalty_by_kind(kinds, table.penalty_kind.take(plans), deadline_s, completion_s)
    np.subtract(1.0, late, out=late)
    late *= table.accuracy.take(plans)
    return late


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


def mean_utility(problem: PlanningProblem, steps: Sequence[Step]) -> float:
    """Expected, over the requests of a plan."""
    rows = as_rows(problem, problem.steps, steps)[None]
    return float(
        utilities(problem, problem.steps, rows, completions(problem, problem.steps, rows)).mean()
    )


def plan_of(problem: PlanningProblem, steps: Sequence[Step]) -> SelectionPlan:
    """The plan that consists of these steps, in their order on each worker."""
    if not steps:
        return SelectionPlan(())
    table = problem.steps
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
