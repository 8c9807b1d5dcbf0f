"""Improves plans by single moves and reassignments until none helps or the budget is spent.

A plan is an array of rows of the step table, sorted by worker. Its neighbours are evaluated in
parts; the best of the first part with a better one is taken. Small neighbourhoods come first. The
budget counts evaluated plans, so that the result does not depend on the machine. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from gateway.selection.timeline import as_rows, as_steps, completions, utilities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.selection.planning_problem import (
        Floats,
        Ints,
        PlanningProblem,
        Step,
        StepTable,
    )

_GAIN: Final = 1e-9
"""Smaller gains are rounding."""
_PART: Final = 128
"""Neighbours that are evaluated at once."""
_MAX_DISTANCE: Final = 24
"""Places that a move may cross; bounds the neighbours of a long plan."""


def improve(problem: PlanningProblem, starts: Sequence[Sequence[Step]]) -> list[Step]:
    """The best plan found from any start; later starts get what is left of the budget."""
    search = _Search(problem)
    found = [search.descend(as_rows(problem, search.table, start)) for start in starts]
    best, _ = max(found, key=lambda each: each[1])  # the first of equally good ones
    return as_steps(search.table, best)


class _Search:
    def __init__(self, problem: PlanningProblem) -> None:
        self.table: StepTable = problem.steps
        self._problem = problem
        self._budget = problem.options.max_evaluations
        self._application = np.array(problem.application_of)[self.table.request]
        self._is_sorted = problem.has_one_worker and not problem.options.short_circuit

    def descend(self, plan: Ints) -> tuple[Ints, float]:
        """The best plan from `plan` on, and the sum of its utilities."""
        value = float(self._values(plan[None])[0])
        neighbourhoods = (
            self._reassigned_runs, self._reassigned_requests, self._moved_runs,
            self._moved_requests,
        )  # fmt: skip
        at = 0
        while at < len(neighbourhoods) and self._budget > 0:
            better = self._first_better(neighbourhoods[at](plan), value)
            at += 1
            if better is not None:
                (plan, value), at = better, 0
        return plan, value

    def _first_better(self, plans: Ints, value: float) -> tuple[Ints, float] | None:
        """The best plan of the first part of `plans` that holds a better one."""
        for begin in range(0, len(plans), _PART):
            part = plans[begin : begin + min(_PART, self._budget)]
            if not len(part):
                return None
            self._budget -= len(part)
            if not self._is_sorted:
                part = self._by_worker(part)
            values = self._values(part)
            best = int(np.argmax(values))
            if values[best] > value + _GAIN:
                return part[best], float(values[best])
        return None

    def _by_worker(self, plans: Ints) -> Ints:
        """The plans with the steps of each worker together, in their order."""
        workers = self.table.worker.take(plans)
        mixed = np.flatnonzero((workers[:, 1:] < workers[:, :-1]).any(axis=1))
        if len(mixed):
            order = np.argsort(workers[mixed], axis=1, kind="stable")
            order += plans.shape[1] * mixed[:, None]
            plans[mixed] = plans.take(order)
        return plans

    def _values(self, plans: Ints) -> Floats:
        ends = completions(self._problem, self.table, plans)
        return np.asarray(utilities(self._problem, self.table, plans, ends).sum(axis=1))

    def _runs(self, plan: Ints) -> Ints:
        """The number of each step's run: requests of one application in a row, with one choice."""
        choice = plan - self.table.first[self.table.request[plan]]
        owner = self._application[plan]
        runs = np.zeros(len(plan), np.int64)
        np.cumsum((choice[1:] != choice[:-1]) | (owner[1:] != owner[:-1]), out=runs[1:])
        return runs

    def _reassigned_runs(self, plan: Ints) -> Ints:
        """Each run with every choice of its application."""
        runs = self._runs(plan)
        _, begins = np.unique(runs, return_index=True)
        counts = np.array([self._choices(row) for row in plan[begins].tolist()])
        run = np.repeat(np.arange(len(begins)), counts)
        choice = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self.table.first[self.table.request[plan]] + choice[:, None]
        return np.where(runs == run[:, None], rows, plan)

    def _choices(self, row: int) -> int:
        return len(self._problem.choices[int(self._application[row])].variants)

    def _reassigned_requests(self, plan: Ints) -> Ints:
        """Each request with every other choice."""
        counts = [self._choices(row) for row in plan.tolist()]
        places = np.repeat(np.arange(len(plan)), counts)
        choice = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self.table.first[self.table.request[plan[places]]] + choice
        differs = rows != plan[places]
        places, rows = places[differs], rows[differs]
        plans = np.repeat(plan[None], len(places), axis=0)
        plans[np.arange(len(places)), places] = rows
        return plans

    def _moved_runs(self, plan: Ints) -> Ints:
        """Each run at the place of every other one."""
        runs = self._runs(plan)
        count = int(runs[-1]) + 1
        if count < 2:
            return plan[None][:0]
        orders = _insertions(count)[0][: self._budget]
        ranks = np.empty_like(orders)
        np.put_along_axis(ranks, orders, np.arange(count)[None], axis=1)
        return plan[np.argsort(ranks[:, runs], axis=1, kind="stable")]

    def _moved_requests(self, plan: Ints) -> Ints:
        """Each request at every other place, as it is and as the request that was there."""
        if len(plan) < 2:
            return plan[None][:0]
        orders, places = _insertions(len(plan))
        moved = plan[orders]
        rows, there = np.arange(len(orders)), plan[places]
        mine = moved[rows, places]
        first = self.table.first[self.table.request]
        joined = first[mine] + there - first[there]
        is_joining = (self._application[mine] == self._application[there]) & (joined != mine)
        joining = moved[is_joining]
        joining[np.arange(len(joining)), places[is_joining]] = joined[is_joining]
        return np.concatenate([joining, moved])


@lru_cache(maxsize=128)
def _insertions(count: int) -> tuple[Ints, Ints]:
    """Orders of `count` items with one moved, and the place that it moved to."""
    orders, places = [], []
    for at in range(count):
        rest = [*range(at), *range(at + 1, count)]
        for place in range(max(0, at - _MAX_DISTANCE), min(count, at + _MAX_DISTANCE + 1)):
            if place != at:
                orders.append([*rest[:place], at, *rest[place:]])
                places.append(place)
    return np.array(orders), np.array(places)
