"""Improves plans by single moves and reassignments until none helps or the budget is spent.

A change gives a run of steps another choice, another place, or both. Changed plans are evaluated in
parts; the best of the first part with a better one is taken, or one that joins several of its
reassignments that help alone. Small neighbourhoods come first. The budget counts evaluated plans,
so that the result does not depend on the machine. Pure.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from variants.planning.planning_problem import Floats, Ints, PlanningProblem, evaluated

_GAIN: Final = 1e-9
"""Smaller gains are rounding."""
_PART: Final = 128
"""Plans that are evaluated at once."""
_MAX_COMBINED: Final = 6
"""Plans that combine changes of one part."""
_MAX_DISTANCE: Final = 24
"""Places that a move may cross; bounds the neighbours of a long plan."""


def improve(problem: PlanningProblem, starts: Sequence[Sequence[int]]) -> list[int]:
    """The best plan found from any start; later starts get what is left of the budget."""
    search = _Search(problem)
    found = [search.descend(np.array(start)) for start in starts]
    best, _ = max(found, key=lambda each: each[1])  # the first of equally good ones
    steps: list[int] = best.tolist()
    return steps


class _Search:
    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self._budget = problem.options.max_evaluations
        self._most = problem.variant.shape[1]
        self._counts = (problem.variant >= 0).sum(axis=1)
        """[requests]: their numbers of choices."""

    def descend(self, start: Ints) -> tuple[Ints, float]:
        """The best plan from `start` on, and the sum of its utilities."""
        [plan], _, values = evaluated(self._problem, start[None])
        value = float(values.sum())
        neighbourhoods = (self._reassigned, self._moved_runs, self._moved_requests)
        at = 0
        while at < len(neighbourhoods) and self._budget > 0:
            better = self._first_better(plan, value, neighbourhoods[at](plan), combines=at == 0)
            at += 1
            if better is not None:
                (plan, value), at = better, 0
        return plan, value

    def _first_better(
        self, plan: Ints, value: float, changes: Ints, *, combines: bool
    ) -> tuple[Ints, float] | None:
        """The best plan of the first part of the changes that holds a better one than `plan`.

        `combines`: or one that makes several of the part's changes that are better alone.
        """
        for begin in range(0, len(changes), _PART):
            if self._budget <= 0:
                return None
            part = self._changed(plan, changes[begin : begin + min(_PART, self._budget)])
            found, values = self._evaluated(part)
            best = int(np.argmax(values))
            if values[best] <= value + _GAIN:
                continue
            chosen, reached = found[best], float(values[best])
            better = np.flatnonzero(values > value + _GAIN)
            if combines and self._budget > 0 and len(better) > 1:
                ranked = better[np.argsort(-values[better], kind="stable")]
                joint = _combined(plan, part[ranked])[: self._budget]
                if len(joint):
                    found, values = self._evaluated(joint)
                    best = int(np.argmax(values))
                    if values[best] > reached:
                        chosen, reached = found[best], float(values[best])
            return chosen, reached
        return None

    def _changed(self, plan: Ints, changes: Ints) -> Ints:
        """Plans in which the steps from `begin` to `end` have another place and choice.

        Changes are [changes, 4]: begin, end, place in halves, and choice; -1: the same.
        """
        begin, end, place, choice = (changes[:, at, None] for at in range(4))
        at = np.arange(len(plan))
        is_inside = (at >= begin) & (at < end)
        steps = np.where(is_inside & (choice >= 0), plan - plan % self._most + choice, plan)
        moved = np.flatnonzero(changes[:, 2] != 2 * changes[:, 0])
        if len(moved):
            keys = np.where(is_inside, place, 2 * at)[moved]
            order = np.argsort(keys, axis=1, kind="stable")
            steps[moved] = np.take_along_axis(steps[moved], order, axis=1)
        return steps

    def _evaluated(self, plans: Ints) -> tuple[Ints, Floats]:
        """The plans with the steps of each worker together, and their sums of utilities."""
        self._budget -= len(plans)
        found, _, values = evaluated(self._problem, plans)
        return found, values.sum(axis=1)

    def _runs(self, plan: Ints) -> tuple[Ints, Ints]:
        """Begin and end of each run: requests of one application in a row, with one choice."""
        owner = self._problem.application.take(plan // self._most)
        choice = plan % self._most
        ends = np.flatnonzero((choice[1:] != choice[:-1]) | (owner[1:] != owner[:-1])) + 1
        return np.concatenate([[0], ends]), np.concatenate([ends, [len(plan)]])

    def _reassigned(self, plan: Ints) -> Ints:
        """Each run of several requests, and each request, with every other choice."""
        begins, ends = self._runs(plan)
        is_long = ends - begins > 1
        of_requests = np.arange(len(plan))
        begins = np.concatenate([begins[is_long], of_requests])
        ends = np.concatenate([ends[is_long], of_requests + 1])
        choice = np.arange(self._most)
        now = plan.take(begins)[:, None]
        is_other = (choice != now % self._most) & (choice < self._counts.take(now // self._most))
        which, choice = np.nonzero(is_other)
        return np.stack([begins[which], ends[which], 2 * begins[which], choice], axis=1)

    def _moved_runs(self, plan: Ints) -> Ints:
        """Each run at the place of every other one."""
        begins, ends = self._runs(plan)
        run, there = _moves(len(begins))
        place = np.where(there < run, 2 * begins[there] - 1, 2 * ends[there] - 1)
        return np.stack([begins[run], ends[run], place, np.full(len(run), -1)], axis=1)

    def _moved_requests(self, plan: Ints) -> Ints:
        """Each request at every other place, as the request that was there and as it is."""
        at, there = _moves(len(plan))
        place = np.where(there < at, 2 * there - 1, 2 * there + 1)
        choice, owner = plan % self._most, self._problem.application.take(plan // self._most)
        moved = np.stack([at, at + 1, place, np.full(len(at), -1)], axis=1)
        is_joining = (owner[at] == owner[there]) & (choice[at] != choice[there])
        joining = moved[is_joining]
        joining[:, 3] = choice[there[is_joining]]
        return np.concatenate([joining, moved])


@lru_cache(maxsize=128)
def _moves(count: int) -> tuple[Ints, Ints]:
    """Which of `count` items is moved, and to the place of which."""
    items = np.arange(count)
    distance = np.abs(items[:, None] - items)
    at, there = np.nonzero((distance > 0) & (distance <= _MAX_DISTANCE))
    return at, there


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
