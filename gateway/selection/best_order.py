"""The best plan over all orders of groups and all choices for each of them.

Dynamic programming over the number of groups that are done: of two partial plans with the same
groups done and the same variants loaded, one that is later and no better is dropped. That loses
nothing, since utility never rises with time. Neither does dropping one whose utility, with the
best that its other groups could get from where it ends, is below that of a plan that is known. The
number of partial plans still grows exponentially with the groups, so it is bounded. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway.selection.greedy_placement import greedy_utility
from gateway.selection.planning_problem import Floats, Ints, PlanningProblem, Step, penalty_by_kind

_BOUND_TIMES: Final = 32
"""Times that bounds are computed for; later ones take that before."""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Groups and their choices, padded: the requests and choices that are missing are worthless."""

    variant: Ints
    """[groups, choices]."""
    worker: Ints
    is_choice: Ints
    takes_time: Ints
    swap_s: Floats
    total_s: Floats
    """[groups, choices]: all requests of the group, without the swap."""
    ends_s: Floats
    """[groups, choices, requests], from the start of the group's first request to each arrival's
    age: what is added to the start gives the completion."""
    accuracy: Floats
    """[groups, choices, requests]."""
    deadline_s: Floats
    """[groups, 1, requests]."""
    penalty_kind: Ints
    """[groups, 1, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class _Partials:
    """Partial plans with the same number of groups done."""

    utility: Floats
    done: Ints
    """A bit per group."""
    free_s: Floats
    """[plans, workers]."""
    loaded: Ints
    """[plans, workers]."""
    origin: Ints
    """[plans, 3]: the plan it extends, the group, its choice."""

    def take(self, kept: Ints) -> _Partials:
        return _Partials(
            self.utility[kept], self.done[kept], self.free_s[kept], self.loaded[kept],
            self.origin[kept],
        )  # fmt: skip


def best_order(
    problem: PlanningProblem, groups: Sequence[Ints], *, at_least: float = -np.inf,
    max_plans: int | None = None,
) -> list[Step] | None:  # fmt: skip
    """The steps of the best plan; of equally good ones, one that ends first.

    None: the search would evaluate more than `max_plans` (else `max_partial_plans` of the
    options), or no plan has a sum of utilities of `at_least`.
    """
    table = _padded(problem, groups)
    partials = _Partials(
        np.zeros(1), np.zeros(1, np.int64), problem.free_s[None], problem.loaded[None],
        np.zeros((1, 3), np.int64),
    )  # fmt: skip
    bound = _Bound.of(problem, table, max(at_least, greedy_utility(problem, groups)))
    levels: list[_Partials] = []
    budget = problem.options.max_partial_plans if max_plans is None else max_plans
    for left in range(len(groups), 0, -1):
        budget -= len(partials.done) * left * table.variant.shape[1]
        if budget < 0:
            return None
        found = _extended(problem, table, partials, bound)
        if not len(found.done):
            return None
        partials = _without_dominated(found)
        levels.append(partials)
    plan = int(np.lexsort((partials.free_s.sum(axis=1), -partials.utility))[0])
    blocks = []
    for level in reversed(levels):
        before, at, choice = level.origin[plan].tolist()
        variant, worker = int(table.variant[at, choice]), int(table.worker[at, choice])
        blocks.append([Step(int(request), variant, worker) for request in groups[at]])
        plan = before
    return [step for block in reversed(blocks) for step in block]


def _padded(problem: PlanningProblem, groups: Sequence[Ints]) -> _Groups:
    owners = [problem.choices[problem.application_of[group[0]]] for group in groups]
    shape = (len(groups), max(len(each.variants) for each in owners))
    size = max(len(group) for group in groups)
    variant, worker = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    is_choice = np.zeros(shape, bool)
    latency, swap, around = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    accuracy, age = np.zeros((*shape, size)), np.zeros((len(groups), 1, size))
    deadline = np.ones((len(groups), 1, size))
    for at, (group, choices) in enumerate(zip(groups, owners, strict=True)):
        count = len(choices.variants)
        variant[at, :count], worker[at, :count] = choices.variants, choices.workers
        is_choice[at, :count] = True
        latency[at, :count], swap[at, :count] = choices.latency_s, choices.swap_s
        around[at, :count] = choices.around_s
        accuracy[at, :count, : len(group)] = problem.accuracy[group, choices.variants[:, None]]
        age[at, 0, : len(group)] = problem.age_s[group]
        deadline[at, 0, : len(group)] = problem.deadline_s[group]
    sizes = np.array([len(group) for group in groups])
    return _Groups(
        variant, worker, is_choice, variant != problem.short_circuit,
        swap, latency * sizes[:, None],
        latency[:, :, None] * np.arange(1, size + 1) + around[:, :, None] + age, accuracy, deadline,
        problem.penalty_kind[[group[0] for group in groups]][:, None, None],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """What a partial plan must reach, and what it can reach at most."""

    least: float
    """A sum of utilities; lower ones are of no use."""
    begin_s: float
    step_s: float
    highest: Floats
    """[times, groups, choices]: what a group gets that begins then, less where it is later."""
    best: Floats
    """[times, groups]: by the best of its choices, without a swap."""

    @classmethod
    def of(cls, problem: PlanningProblem, table: _Groups, least: float) -> _Bound:
        begin_s = float(problem.free_s[:-1].min(initial=np.inf))
        if begin_s == np.inf:  # short circuits only
            begin_s = 0.0
        longest = np.where(table.takes_time, table.total_s + table.swap_s, 0.0).max(axis=1)
        step_s = max(float(longest.sum()) / _BOUND_TIMES, _ROUNDING)
        times = begin_s + step_s * np.arange(_BOUND_TIMES)
        starts = np.where(table.takes_time, times[:, None, None], 0.0)
        late = penalty_by_kind(
            problem.penalties, table.penalty_kind, table.deadline_s,
            starts[..., None] + table.ends_s,
        )  # fmt: skip
        gained = (table.accuracy * (1.0 - late)).sum(axis=-1)
        highest = np.where(table.is_choice, gained, -np.inf)
        return cls(least - _ROUNDING, begin_s, step_s, highest, highest.max(axis=-1))

    def at(self, time_s: Floats) -> Ints:
        """The number of the latest time of the bounds that is not after `time_s`."""
        at = np.clip((time_s - self.begin_s) / self.step_s - _ROUNDING, 0, _BOUND_TIMES - 1)
        return at.astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Extensions:
    """Partial plans, each with one more group; a row each."""

    plan: Ints
    group: Ints
    choice: Ints
    start_s: Floats


def _hopeful(
    problem: PlanningProblem, table: _Groups, partials: _Partials, bound: _Bound
) -> _Extensions:
    """Every partial plan with every choice for each group that is not done, if it can be best."""
    bits = 1 << np.arange(len(table.variant))
    is_left = partials.done[:, None] & bits == 0
    plan, group = np.nonzero(is_left)
    variant, worker = table.variant[group], table.worker[group]
    free_s = partials.free_s[plan[:, None], worker]
    is_loaded = partials.loaded[plan[:, None], worker] == variant
    starts = free_s + np.where(is_loaded, 0.0, table.swap_s[group])
    at = bound.at(partials.free_s[:, :-1].min(axis=1, initial=np.inf))
    rest = np.where(is_left, bound.best[at], 0.0)
    others = partials.utility + rest.sum(axis=1)
    most = (others[plan] - rest[plan, group])[:, None] + bound.highest[
        bound.at(starts), group[:, None], np.arange(starts.shape[1])
    ]
    pair, choice = np.nonzero(most >= bound.least)
    return _Extensions(plan[pair], group[pair], choice, starts[pair, choice])


def _extended(
    problem: PlanningProblem, table: _Groups, partials: _Partials, bound: _Bound
) -> _Partials:
    """Those of the extensions that can still be best."""
    found = _hopeful(problem, table, partials, bound)
    plan, group, choice = found.plan, found.group, found.choice
    late = penalty_by_kind(
        problem.penalties, table.penalty_kind[group, 0], table.deadline_s[group, 0],
        found.start_s[:, None] + table.ends_s[group, choice],
    )  # fmt: skip
    gained = (table.accuracy[group, choice] * (1.0 - late)).sum(axis=-1)
    free, loaded = partials.free_s[plan], partials.loaded[plan]
    timed = np.flatnonzero(table.takes_time[group, choice])
    of_group, of_choice = group[timed], choice[timed]
    worker = table.worker[of_group, of_choice]
    free[timed, worker] = found.start_s[timed] + table.total_s[of_group, of_choice]
    loaded[timed, worker] = table.variant[of_group, of_choice]
    done = partials.done[plan] | 1 << group
    utility = partials.utility[plan] + gained
    is_left = done[:, None] & (1 << np.arange(len(table.variant))) == 0
    at = bound.at(free[:, :-1].min(axis=1, initial=np.inf))
    most = utility + np.where(is_left, bound.best[at], 0.0).sum(axis=1)
    return _Partials(utility, done, free, loaded, np.stack([plan, group, choice], axis=1)).take(
        np.flatnonzero(most >= bound.least)
    )


def _without_dominated(partials: _Partials) -> _Partials:
    """Drop plans for which another of their kind is nowhere later and as good."""
    workers = partials.free_s.shape[1] - 1  # without the one that answers short circuits
    code, variants = partials.done, partials.loaded.max() + 2
    for worker in range(workers):
        code = code * variants + partials.loaded[:, worker] + 1
        if workers > 1:  # a number for each kind: the product would overflow
            code = np.unique(code, return_inverse=True)[1]
    total = partials.free_s[:, 0] if workers == 1 else partials.free_s[:, :workers].sum(axis=1)
    order = np.lexsort((-partials.utility, total, code))
    if workers == 1:
        return partials.take(order[_rises(partials.utility[order], code[order])])
    ordered = partials.take(order)
    keep = []
    for kind in np.split(np.arange(len(order)), np.flatnonzero(np.diff(code[order])) + 1):
        kept: list[int] = []
        for at in kind.tolist():
            is_early = (ordered.free_s[kept] <= ordered.free_s[at]).all(axis=1)
            if not (is_early & (ordered.utility[kept] >= ordered.utility[at])).any():
                kept.append(at)
        keep += kept
    return ordered.take(np.array(keep))


def _rises(utility: Floats, code: Ints) -> Ints:
    """Where utility exceeds every value before it with the same code; codes are sorted."""
    is_new = np.ones(len(code), bool)
    np.not_equal(code[1:], code[:-1], out=is_new[1:])
    highest = np.maximum.accumulate(utility + np.cumsum(is_new) * (utility.max() + 1.0))
    rises = np.ones(len(utility), bool)
    np.greater(highest[1:], highest[:-1], out=rises[1:])
    return np.asarray(rises)
