"""Improves plans by single moves and reassignments until none helps or the budget is spent.

A plan is an array of rows of the step table, sorted by worker. Its neighbours are evaluated in
parts; the best of the first part with a better one is taken, or one that joins several of its
reassignments that help alone. Small neighbourhoods come first. The budget counts evaluated plans,
so that the result does not depend on the machine. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from gateway.selection.planning_problem import (
    Floats,
    Ints,
    PlanningProblem,
    Step,
)
from gateway.selection.timeline import as_rows, as_steps, completions, utilities

_GAIN: Final = 1e-9
"""Smaller gains are rounding."""
_PART: Final = 128
"""Neighbours that are evaluated at once."""
_MAX_COMBINED: Final = 6
"""Plans that combine changes of one part."""
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
        table = self.table = problem.steps
        self._problem = problem
        self._budget = problem.options.max_evaluations
        self._application = np.array(problem.application_of).take(table.request)
        self._first = table.first.take(table.request)
        counts = np.array([len(each.variants) for each in problem.choices])
        self._choices = counts.take(self._application)
        """By row of the table: its request's number of choices."""
        self._is_sorted = problem.has_one_worker and not problem.options.short_circuit

    def descend(self, plan: Ints) -> tuple[Ints, float]:
        """The best plan from `plan` on, and the sum of its utilities."""
        value = float(self._values(plan[None])[0])
        neighbourhoods = (self._reassigned, self._moved_runs, self._moved_requests)
        at = 0
        while at < len(neighbourhoods) and self._budget > 0:
            better = self._first_better(plan, value, neighbourhoods[at](plan), combines=at == 0)
            at += 1
            if better is not None:
                (plan, value), at = better, 0
        return plan, value

    def _first_better(
        self, plan: Ints, value: float, plans: Ints, *, combines: bool
    ) -> tuple[Ints, float] | None:
        """The best plan of the first part of `plans` that holds a better one than `plan`.

        `combines`: or one that makes several of the part's changes that are better alone.
        """
        for begin in range(0, len(plans), _PART):
            part = plans[begin : begin + min(_PART, self._budget)]
            if not len(part):
                return None
            found, values = self._evaluated(part)
            best = int(np.argmax(values))
            if values[best] <= value + _GAIN:
                continue
            chosen, reached = found[best], float(values[best])
            if combines and self._budget > 0:
                better = np.flatnonzero(values > value + _GAIN)
                ranked = better[np.argsort(-values[better], kind="stable")]
                joint = _combined(plan, part[ranked])[: self._budget]
                if len(joint):
                    found, values = self._evaluated(joint)
                    best = int(np.argmax(values))
                    if values[best] > reached:
                        chosen, reached = found[best], float(values[best])
            return chosen, reached
        return None

    def _evaluated(self, plans: Ints) -> tuple[Ints, Floats]:
        """The plans with the steps of each worker together, and their sums of utilities."""
        self._budget -= len(plans)
        found = plans if self._is_sorted else self._by_worker(plans.copy())
        return found, self._values(found)

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
        choice = plan - self._first.take(plan)
        owner = self._application.take(plan)
        runs = np.zeros(len(plan), np.int64)
        np.cumsum((choice[1:] != choice[:-1]) | (owner[1:] != owner[:-1]), out=runs[1:])
        return runs

    def _reassigned(self, plan: Ints) -> Ints:
        """Each run of several requests, and each request, with every other choice."""
        runs = self._runs(plan)
        begins = np.concatenate([[0], np.flatnonzero(runs[1:] != runs[:-1]) + 1, [len(plan)]])
        is_long = begins[1:] - begins[:-1] > 1
        of_requests = np.arange(len(plan))
        starts = np.concatenate([begins[:-1][is_long], of_requests])
        ends = np.concatenate([begins[1:][is_long], of_requests + 1])
        now = plan.take(starts)
        counts = self._choices.take(now)
        which = np.repeat(np.arange(len(starts)), counts)
        choice = np.arange(len(which)) - (np.cumsum(counts) - counts).take(which)
        differs = np.flatnonzero(choice != (now - self._first.take(now)).take(which))
        which, choice = which.take(differs), choice.take(differs)
        is_changed = (of_requests >= starts.take(which)[:, None]) & (
            of_requests < ends.take(which)[:, None]
        )
        return np.where(is_changed, self._first.take(plan) + choice[:, None], plan)

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
        joined = self._first.take(mine) + there - self._first.take(there)
        is_joining = (self._application[mine] == self._application[there]) & (joined != mine)
        joining = moved[is_joining]
        joining[np.arange(len(joining)), places[is_joining]] = joined[is_joining]
        return np.concatenate([joining, moved])


def _combined(plan: Ints, changed: Ints) -> Ints:
    """`plan` with the first two, three and so on of the changes that concern different steps."""
    joint = changed[0]
    is_taken = joint != plan
    found = []
    for each, is_changed in zip(changed[1:], changed[1:] != plan, strict=True):
        if not (is_taken & is_changed).any():
            joint = np.where(is_changed, each, joint)
            is_taken = is_taken | is_changed
            found.append(joint)
            if len(found) == _MAX_COMBINED:
                break
    return np.array(found) if found else changed[:0]


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
