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

from gateway.selection.greedy_placement import place_greedily
from gateway.selection.planning_problem import (
    Floats,
    Ints,
    PlanningProblem,
    mean_utility,
    penalty_by_kind,
)

_ROUNDING: Final = 1e-9


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
) -> list[int] | None:  # fmt: skip
    """The steps of the best plan; of equally good ones, one that ends first.

    None: the search would evaluate more than `max_plans` (else `max_partial_plans` of the
    options), or no plan has a mean utility of `at_least`.
    """
    search = _Search(problem, groups)
    greedy = mean_utility(problem, place_greedily(problem, groups))
    least = max(at_least, greedy) * len(problem.requests) - _ROUNDING
    budget = problem.options.max_partial_plans if max_plans is None else max_plans
    partials = _Partials(
        np.zeros(1), np.zeros(1, np.int64), problem.free_s[None], problem.loaded[None],
        np.zeros((1, 3), np.int64),
    )  # fmt: skip
    levels: list[_Partials] = []
    for left in range(len(groups), 0, -1):
        budget -= len(partials.done) * left * search.choices
        if budget < 0:
            return None
        partials = search.extended(partials, least)
        if not len(partials.done):
            return None
        partials = _without_dominated(partials)
        levels.append(partials)
    plan = int(np.lexsort((partials.free_s.sum(axis=1), -partials.utility))[0])
    blocks: list[list[int]] = []
    for level in reversed(levels):
        plan, at, choice = level.origin[plan].tolist()
        blocks.append((groups[at] * search.choices + choice).tolist())
    return [step for block in reversed(blocks) for step in block]


class _Search:
    """Groups and their choices; requests that a group has fewer than others are worthless."""

    def __init__(self, problem: PlanningProblem, groups: Sequence[Ints]) -> None:
        self._problem = problem
        firsts = np.array([group[0] for group in groups])
        self._variant, self._worker = problem.variant[firsts], problem.worker[firsts]
        self.choices = self._variant.shape[1]
        """Of a group at most."""
        self._takes_time = self._variant != problem.short_circuit
        self._swap_s = problem.swap_s[firsts]
        size = max(len(group) for group in groups)
        self._total_s = problem.latency_s[firsts] * [[len(group)] for group in groups]
        shape = (*self._variant.shape, size)
        self._accuracy, age_s = np.zeros(shape), np.zeros((len(groups), 1, size))
        self._deadline_s = np.ones((len(groups), 1, size))
        for at, group in enumerate(groups):
            self._accuracy[at, :, : len(group)] = problem.accuracy[group].T
            age_s[at, 0, : len(group)] = problem.age_s[group]
            self._deadline_s[at, 0, : len(group)] = problem.deadline_s[group, 0]
        self._ends_s = (
            problem.latency_s[firsts][:, :, None] * np.arange(1, size + 1)
            + problem.around_s[firsts][:, :, None]
            + age_s
        )
        """[groups, choices, requests]: what is added to the group's start for completions."""
        self._penalty_kind = problem.penalty_kind[firsts][:, :1, None]

    def _gained(self, start_s: Floats) -> Floats:
        """[plans, groups, choices]: the utility of each group, begun at `start_s`."""
        late = penalty_by_kind(
            self._problem.penalties, self._penalty_kind, self._deadline_s,
            start_s[..., None] + self._ends_s,
        )  # fmt: skip
        gained = (self._accuracy * (1.0 - late)).sum(axis=-1)
        return np.where(self._variant < 0, -np.inf, gained)  # no choice

    def extended(self, partials: _Partials, least: float) -> _Partials:
        """Every plan with every choice for each group not done, if it can be worth `least`."""
        is_left = partials.done[:, None] & (1 << np.arange(len(self._variant))) == 0
        first_s = partials.free_s[:, :-1].min(axis=1, initial=np.inf)[:, None, None]
        soonest = self._gained(np.where(self._takes_time, first_s, 0.0)).max(axis=-1)
        rest = np.where(is_left, soonest, 0.0)
        others = (partials.utility + rest.sum(axis=1))[:, None] - rest
        is_loaded = partials.loaded[:, self._worker] == self._variant
        starts = partials.free_s[:, self._worker] + np.where(is_loaded, 0.0, self._swap_s)
        gained = self._gained(starts)
        is_hopeful = is_left[:, :, None] & (others[:, :, None] + gained >= least)
        plan, group, choice = np.nonzero(is_hopeful)
        free_s, loaded = partials.free_s[plan], partials.loaded[plan]
        timed = np.flatnonzero(self._takes_time[group, choice])
        worker = self._worker[group, choice][timed]
        ends = starts[plan, group, choice] + self._total_s[group, choice]
        free_s[timed, worker] = ends[timed]
        loaded[timed, worker] = self._variant[group, choice][timed]
        return _Partials(
            partials.utility[plan] + gained[plan, group, choice],
            partials.done[plan] | 1 << group, free_s, loaded,
            np.stack([plan, group, choice], axis=1),
        )  # fmt: skip


def _without_dominated(partials: _Partials) -> _Partials:
    """Drop plans for which another of their kind is nowhere later and as good."""
    workers = partials.free_s.shape[1] - 1  # without the one that answers short circuits
    for by in range(-1, workers if workers > 1 else 0):
        # By when all workers are free together, then by when each of them is.
        time_s = partials.free_s[:, :workers].sum(axis=1) if by < 0 else partials.free_s[:, by]
        kind = partials.done
        for worker in range(workers):  # a number for each kind: the product would overflow
            kind = kind * (partials.loaded.max() + 2) + partials.loaded[:, worker] + 1
            if workers > 1:
                kind = np.unique(kind, return_inverse=True)[1]
        order = np.lexsort((-partials.utility, time_s, kind))
        partials, kind = partials.take(order), kind[order]
        best = _best_before(partials.utility, kind)
        is_dominated = (
            (kind[best] == kind)
            & (best < np.arange(len(kind)))
            & (partials.utility[best] >= partials.utility)
            & (partials.free_s[best] <= partials.free_s).all(axis=1)
        )
        partials = partials.take(np.flatnonzero(~is_dominated))
    return partials


def _best_before(utility: Floats, kind: Ints) -> Ints:
    """The index of the highest utility before each of the same kind; kinds are sorted."""
    is_new = np.ones(len(kind), bool)
    np.not_equal(kind[1:], kind[:-1], out=is_new[1:])
    raised = utility + np.cumsum(is_new) * (np.ptp(utility) + 1.0)
    rises = np.where(np.maximum.accumulate(raised) == raised, np.arange(len(kind)), 0)
    return np.concatenate([[0], np.maximum.accumulate(rises)[:-1]]).astype(np.int64)
