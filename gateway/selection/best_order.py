"""The best plan over all orders of groups and all choices for each of them.

Dynamic programming over the number of groups that are done: of two partial plans with the same
groups done and the same variants loaded, one that is later and no better is dropped. That loses
nothing, since utility never rises with time. Neither does dropping one whose utility, with the
best that its other groups could get from where it ends, is below that of the greedy plan. The
number of partial plans still grows exponentially with the groups, so it is bounded. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gateway.selection.greedy_placement import place_greedily
from gateway.selection.planning_problem import Step, penalty_by_kind
from gateway.selection.timeline import mean_utility

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.selection.planning_problem import Floats, Ints, PlanningProblem


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


def best_order(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Step] | None:
    """The steps of the best plan; of equally good ones, one that ends first.

    None: the search would evaluate more than `max_partial_plans` of the options.
    """
    table = _padded(problem, groups)
    partials = _Partials(
        np.zeros(1), np.zeros(1, np.int64), problem.free_s[None], problem.loaded[None],
        np.zeros((1, 3), np.int64),
    )  # fmt: skip
    bound = _Bound.of(problem, table, groups)
    levels: list[_Partials] = []
    budget = problem.options.max_partial_plans
    for left in range(len(groups), 0, -1):
        budget -= len(partials.done) * left * table.variant.shape[1]
        if budget < 0:
            return None
        partials = _without_dominated(bound.without_hopeless(_extended(problem, table, partials)))
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
    """The sum of utilities of the greedy plan."""
    begin_s: float
    step_s: float
    highest: Floats
    """[times, groups]: the best a group gets that begins then or later, without a swap."""

    @classmethod
    def of(cls, problem: PlanningProblem, table: _Groups, groups: Sequence[Ints]) -> _Bound:
        least = mean_utility(problem, place_greedily(problem, groups)) * len(problem.requests)
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
        highest = np.where(table.is_choice, gained, -np.inf).max(axis=-1)
        return cls(least - _ROUNDING, begin_s, step_s, highest)

    def without_hopeless(self, partials: _Partials) -> _Partials:
        free_s = partials.free_s[:, :-1].min(axis=1, initial=np.inf)
        at = np.clip((free_s - self.begin_s) / self.step_s - _ROUNDING, 0, _BOUND_TIMES - 1)
        is_left = partials.done[:, None] & (1 << np.arange(self.highest.shape[1])) == 0
        rest = (self.highest[at.astype(np.int64)] * is_left).sum(axis=1)
        return partials.take(np.flatnonzero(partials.utility + rest >= self.least))


def _extended(problem: PlanningProblem, table: _Groups, partials: _Partials) -> _Partials:
    """Every partial plan with every choice for each group that is not done."""
    bits = 1 << np.arange(len(table.variant))
    plan, group = np.nonzero(partials.done[:, None] & bits == 0)
    variant, worker = table.variant[group], table.worker[group]
    rows = plan[:, None]
    swap = np.where(partials.loaded[rows, worker] == variant, 0.0, table.swap_s[group])
    starts = partials.free_s[rows, worker] + swap
    late = penalty_by_kind(
        problem.penalties,
        table.penalty_kind[group],
        table.deadline_s[group],
        starts[:, :, None] + table.ends_s[group],
    )
    gained = (table.accuracy[group] * (1.0 - late)).sum(axis=-1)
    pair, choice = np.nonzero(table.is_choice[group])
    plan, group, worker = plan[pair], group[pair], worker[pair, choice]
    free, loaded = partials.free_s[plan], partials.loaded[plan]
    timed = np.flatnonzero(table.takes_time[group, choice])
    ends = starts[pair, choice] + table.total_s[group, choice]
    free[timed, worker[timed]] = ends[timed]
    loaded[timed, worker[timed]] = variant[pair, choice][timed]
    return _Partials(
        partials.utility[plan] + gained[pair, choice],
        partials.done[plan] | bits[group],
        free,
        loaded,
        np.stack([plan, group, choice], axis=1),
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
