"""Plans of a window: greedy ones (Wolfrath et al. 2025, section 5), and the one search from them.

The search is over orders and choices of groups of requests, or of single ones. Where all plans are
few it evaluates all; else it improves each start by small changes, the promising ones first, and
then the best plan found by random ones of a fixed seed, until its budget is spent. The budget
counts plans, so that the result does not depend on the machine. Pure.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from registry.domain.application import SelectionPolicy
from registry.policy_names import SELECTION
from variants.planning.planning_problem import (
    Floats,
    Ints,
    PlanningProblem,
    evaluated,
    mean_utility,
    plan_of,
    planning_problem,
)
from variants.planning.window import SelectionOptions, SelectionPlan, Window, penalty

_GAIN: Final = 1e-9
"""Smaller gains are rounding."""
_PART: Final = 128
"""Plans that are evaluated at once."""
_MAX_COMBINED: Final = 6
"""Plans that combine changes of one part."""
_MAX_DISTANCE: Final = 24
"""Places that a move may cross; bounds the neighbours of a long plan."""
_MAX_CHANGED: Final = 4
"""Groups that a random change concerns."""
_SEED: Final = 0


def by_arrival(problem: PlanningProblem) -> list[Ints]:
    return [np.array([at]) for at in range(len(problem.requests))]


def by_deadline(problem: PlanningProblem) -> list[Ints]:
    """Each request alone, by its time due; requests are sorted by arrival and id already."""
    due = problem.deadline_s[:, 0] - problem.age_s
    return [np.array([at]) for at in np.argsort(due, kind="stable")]


def by_priority(problem: PlanningProblem) -> list[Ints]:
    """Each request alone, by falling priority."""
    return [np.array([at]) for at in np.argsort(-problem.priority, kind="stable")]


def by_application(problem: PlanningProblem, *, is_split: bool) -> list[Ints]:
    """Groups by falling priority, as are their requests; `is_split`: also by likely class."""
    members: dict[tuple[int, int], list[int]] = {}
    for at in np.argsort(-problem.priority, kind="stable").tolist():
        likely = int(problem.likely[at]) if is_split else -1
        members.setdefault((int(problem.application[at]), likely), []).append(at)
    return _sorted(problem, [np.array(group) for _, group in sorted(members.items())])


def _sorted(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Ints]:
    """By falling mean priority (eq. 14); ties keep the order."""
    return sorted(groups, key=lambda group: -np.add.reduce(problem.priority[group]) / len(group))


def share_among_workers(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Ints]:
    """Groups in equal parts, one for each worker (section 8), by falling priority again."""
    workers = len(problem.workers) - 1
    shared: list[Ints] = []
    for group in groups:
        most = -(-len(group) // max(workers, 1))
        shared += np.array_split(group, -(-len(group) // most))
    return _sorted(problem, shared) if len(shared) > len(groups) else list(groups)


def place_greedily(
    problem: PlanningProblem, groups: Sequence[Ints], *, by_accuracy: bool = False
) -> list[int]:
    """The steps of all groups, each where its mean utility is highest (eq. 13).

    A group has one variant, on one worker, and begins when that worker is free. Ties go to the
    earlier completion, then to the first name. `by_accuracy`: lateness does not count.
    """
    free_s, loaded = problem.free_s.copy(), np.full(len(problem.free_s), -1)
    steps: list[int] = []
    for group in groups:
        first = int(group[0])
        variant, worker = problem.variant[first], problem.worker[first]
        start_s = free_s[worker] + np.where(loaded[worker] == variant, 0.0, problem.swap_s[first])
        gained = problem.accuracy[group]
        if not by_accuracy:
            kind = problem.penalties[problem.penalty_kind[first, 0]]
            turns_s = problem.latency_s[first] * np.arange(1, len(group) + 1)[:, None]
            ends_s = start_s + (turns_s + problem.beside_s[group])
            gained = gained * (1.0 - penalty(kind, problem.deadline_s[group], ends_s))
        worth = np.where(variant < 0, -np.inf, np.add.reduce(gained, axis=0))  # -2: no choice
        end_s = start_s + problem.latency_s[first] * len(group)
        best = int(np.lexsort((end_s, -worth))[0])
        if variant[best] != problem.short_circuit:
            free_s[worker[best]], loaded[worker[best]] = end_s[best], variant[best]
        steps += (group * len(variant) + best).tolist()
    return steps


class PlanSearch:
    """Plans are [groups]: a group's number * the number of choices + its choice, in their order."""

    def __init__(self, problem: PlanningProblem, groups: Sequence[Ints], budget: int) -> None:
        """`budget`: the most plans."""
        self._problem = problem
        self._budget = budget
        self._most = problem.variant.shape[1]
        self._members = np.concatenate(groups)
        firsts = np.array([group[0] for group in groups])
        self._owner = problem.application[firsts]
        self._counts = (problem.variant[firsts] >= 0).sum(axis=1)
        """[groups]: their numbers of choices."""
        self._group = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        """[members]."""
        self._is_single = len(groups) == len(self._members)
        self._number = np.argsort(self._members)
        """[requests]: the place among members."""

    def all(self) -> list[int] | None:
        """The best of all orders and choices; None: they are more than the budget."""
        count = len(self._counts)
        orders = math.factorial(count)
        if orders > self._budget or orders * math.prod(self._counts.tolist()) > self._budget:
            return None
        choices = np.indices(self._counts).reshape(count, -1).T
        places = np.array(list(itertools.permutations(range(count))))
        plans = (np.arange(count) * self._most + choices)[:, places].reshape(-1, count)
        _, values = self._evaluated(plans)
        return self._as_list(plans[int(np.argmax(values))])

    def best(self, starts: Sequence[Sequence[int]]) -> list[int]:
        """The best of all, else that found from any start, which has each group together.

        Later starts get what is left of the budget, random changes what those leave.
        """
        if (best_of_all := self.all()) is not None:
            return best_of_all
        found = [self._descend(self._groups_of(np.array(start))) for start in starts]
        plan, value = max(found, key=lambda each: each[1])  # the first of equally good ones
        rng = np.random.default_rng(_SEED)
        while self._budget > 0:
            plans, values = self._evaluated(self._shaken(plan, rng)[: self._budget])
            best = int(np.argmax(values))
            if values[best] > value + _GAIN:
                plan, value = self._descend(plans[best])
        return self._as_list(plan)

    def _as_list(self, plan: Ints) -> list[int]:
        steps: list[int] = self._steps(plan[None])[0].tolist()
        return steps

    def _groups_of(self, start: Ints) -> Ints:
        """A plan of requests as one of groups."""
        group = self._group[self._number[start // self._most]]
        _, firsts = np.unique(group, return_index=True)
        firsts.sort()
        return np.asarray(group[firsts] * self._most + start[firsts] % self._most)

    def _steps(self, plans: Ints) -> Ints:
        """[plans, requests] of plans of groups."""
        if self._is_single:
            return np.asarray(self._members[plans // self._most] * self._most + plans % self._most)
        place = np.argsort(plans // self._most, axis=1)
        choice = np.take_along_axis(plans % self._most, place, axis=1)[:, self._group]
        order = np.argsort(place[:, self._group], axis=1, kind="stable")
        return np.take_along_axis(self._members * self._most + choice, order, axis=1)

    def _evaluated(self, plans: Ints) -> tuple[Ints, Floats]:
        """The plans, those of single requests sorted by worker, and their sums of utilities."""
        self._budget -= len(plans)
        steps, _, values = evaluated(self._problem, self._steps(plans))
        if self._is_single:
            plans = self._number[steps // self._most] * self._most + steps % self._most
        return plans, values.sum(axis=1)

    def _descend(self, start: Ints) -> tuple[Ints, float]:
        """The best plan from `start` on, and the sum of its utilities."""
        [plan], [value] = self._evaluated(start[None])
        self._budget += 1  # of starts nothing is counted
        neighbourhoods = (self._reassigned, self._moved)
        at = 0
        while at < len(neighbourhoods) and self._budget > 0:
            better = self._first_better(plan, value, neighbourhoods[at](plan), combines=at == 0)
            at += 1
            if better is not None:
                (plan, value), at = better, 0
        return plan, float(value)

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

    def _shaken(self, plan: Ints, rng: np.random.Generator) -> Ints:
        """Plans in which a few groups have random places and choices."""
        count = len(plan)
        moved = rng.integers(1, min(_MAX_CHANGED, count) + 1, (2 * _PART, 1))
        is_moved = rng.random((len(moved), count)).argsort(axis=1) < moved
        choice = (rng.random(is_moved.shape) * self._counts[plan // self._most]).astype(np.int64)
        steps = np.where(is_moved, plan - plan % self._most + choice, plan)
        keys = np.where(is_moved, rng.random(is_moved.shape) * 2 * count - 1, 2 * np.arange(count))
        return np.take_along_axis(steps, np.argsort(keys, axis=1, kind="stable"), axis=1)

    def _runs(self, plan: Ints) -> tuple[Ints, Ints]:
        """Begin and end of each run: groups of one application in a row, with one choice."""
        owner = self._owner.take(plan // self._most)
        choice = plan % self._most
        ends = np.flatnonzero((choice[1:] != choice[:-1]) | (owner[1:] != owner[:-1])) + 1
        return np.concatenate([[0], ends]), np.concatenate([ends, [len(plan)]])

    def _reassigned(self, plan: Ints) -> Ints:
        """Each run of several groups, and each group, with every other choice."""
        begins, ends = self._runs(plan)
        is_long = ends - begins > 1
        alone = np.arange(len(plan))
        begins = np.concatenate([begins[is_long], alone])
        ends = np.concatenate([ends[is_long], alone + 1])
        choice = np.arange(self._most)
        now = plan.take(begins)[:, None]
        is_other = (choice != now % self._most) & (choice < self._counts.take(now // self._most))
        which, choice = np.nonzero(is_other)
        return np.stack([begins[which], ends[which], 2 * begins[which], choice], axis=1)

    def _moved(self, plan: Ints) -> Ints:
        """Each group at every other place, as the group that was there and as it is."""
        at, there = _moves(len(plan))
        place = np.where(there < at, 2 * there - 1, 2 * there + 1)
        choice, owner = plan % self._most, self._owner.take(plan // self._most)
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


# The selection policies by name (section 6.1): a window in, a plan out. A plug-in is a function
# of the problem that returns its steps. Data-awareness and the short circuit are options of each;
# `sneakpeek` and `refined` are `grouped` with everything that the applications offer.


PLAIN: Final = SelectionOptions()
FULL: Final = SelectionOptions(is_data_aware=True, short_circuit=True, splits_groups=True)
_GROUP_PLANS: Final = 700
"""Plans of up to tau groups that are evaluated: some 4 ms for 24 requests."""
_EXACT_PLANS: Final = 30_000
"""All of 5 requests with 3 variants: some 15 ms."""
_FEW: Final = 18
"""For half as many requests `refined` evaluates twice the plans in the same time, and so on."""


def plan_window(
    policy: str, window: Window, options: SelectionOptions | None = None
) -> SelectionPlan:
    """The plan of a policy; without options `sneakpeek` and `refined` use all, others none.

    Raises ValueError for an application that no worker can serve, and PluginError.
    """
    if not window.requests:
        return SelectionPlan(())
    is_ours = policy in (SelectionPolicy.SNEAKPEEK, SelectionPolicy.REFINED)
    problem = planning_problem(window, options or (FULL if is_ours else PLAIN))
    place = _RULES.get(policy) or SELECTION.load(policy)
    return plan_of(problem, place(problem))


def _lo_edf(problem: PlanningProblem) -> list[int]:
    return place_greedily(problem, by_deadline(problem))


def _lo_priority(problem: PlanningProblem) -> list[int]:
    return place_greedily(problem, by_priority(problem))


def _grouped(problem: PlanningProblem) -> list[int]:
    """Algorithm 1, its order by the search; over tau, also without splitting if that is better.

    Splitting into more subgroups than can be ordered well lost up to 0.11 of utility.
    """
    if len(problem.requests) == 1:
        return _lo_edf(problem)
    groups = by_application(problem, is_split=problem.options.splits_groups)
    plan = _group_plan(problem, groups)
    if not problem.options.splits_groups or len(groups) <= problem.options.max_exact_groups:
        return plan
    whole = _group_plan(problem, by_application(problem, is_split=False))
    return max(plan, whole, key=lambda each: mean_utility(problem, each))


def _group_plan(problem: PlanningProblem, groups: Sequence[Ints]) -> list[int]:
    greedy = place_greedily(problem, share_among_workers(problem, groups))
    if problem.has_one_worker and len(groups) <= problem.options.max_exact_groups:
        return PlanSearch(problem, groups, _GROUP_PLANS).best([greedy])
    return greedy


def _exact(problem: PlanningProblem) -> list[int]:
    """Of a window that is too large, the plan of `refined`: users choose policies by a header."""
    return PlanSearch(problem, by_arrival(problem), _EXACT_PLANS).all() or _refined(problem)


def _refined(problem: PlanningProblem) -> list[int]:
    if len(problem.requests) == 1:
        return _lo_edf(problem)
    starts = (_grouped(problem), _lo_priority(problem), _lo_edf(problem))
    budget = problem.options.max_evaluations * max(1, _FEW // len(problem.requests))
    return PlanSearch(problem, by_arrival(problem), budget).best(starts)


_RULES: Final[Mapping[str, Callable[[PlanningProblem], list[int]]]] = {
    SelectionPolicy.LO_EDF: _lo_edf,
    SelectionPolicy.LO_PRIORITY: _lo_priority,
    SelectionPolicy.GROUPED: _grouped,
    SelectionPolicy.SNEAKPEEK: _grouped,
    SelectionPolicy.EXACT: _exact,
    SelectionPolicy.REFINED: _refined,
}
