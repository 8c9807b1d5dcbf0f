"""The best plan over all orders of groups and all choices: what the search is held to.

Dynamic programming over the number of groups that are done: of two partial plans with the same
groups done and the same variants loaded, one that is later and no better is dropped. That loses
nothing, since utility never rises with time. Neither does dropping one whose utility, with the
best that its other groups could get from where it ends, is below that of a plan that is known. The
number of partial plans still grows exponentially with the groups, so it is bounded. Pure.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from variants.planning.planning_problem import (
    Floats,
    Ints,
    PlanningProblem,
    mean_utility,
    penalty_by_kind,
)
from variants.planning.search import place_greedily

_ROUNDING: Final = 1e-9
_BOUND_TIMES: Final = 32
"""Times that bounds are computed for; later ones take that before."""
_COMPARED: Final = 16
"""Plans before one that are compared with it, where there are several workers."""
_UTILITY: Final = 0
_DONE: Final = 1
"""A bit per group."""
_ORIGIN: Final = slice(2, 5)
"""The plan it extends, the group, its choice."""
_STATE: Final = 5
"""When each worker is free, and then the variant that each ran last; -1: none."""


def best_order(
    problem: PlanningProblem, groups: Sequence[Ints], max_plans: int = 50_000
) -> list[int] | None:
    """The steps of the best plan; of equally good ones, one that ends first.

    None: the search would evaluate more than `max_plans` partial plans.
    """
    search = _Search(problem, groups, max_plans)
    greedy = mean_utility(problem, place_greedily(problem, groups))
    least = greedy * len(problem.requests) - _ROUNDING
    partials = np.array([[*[0.0] * _STATE, *problem.free_s, *[-1.0] * len(problem.free_s)]])
    levels: list[Floats] = []
    for _ in groups:
        partials = search.without_dominated(search.extended(partials, least))
        if not len(partials):
            return None
        levels.append(partials)
    ends_s = partials[:, search.free].sum(axis=1)
    plan = int(np.lexsort((ends_s, -partials[:, _UTILITY]))[0])
    blocks: list[list[int]] = []
    for level in reversed(levels):
        plan, at, choice = level[plan, _ORIGIN].astype(int).tolist()
        blocks.append((groups[at] * search.choices + choice).tolist())
    return [step for block in reversed(blocks) for step in block]


class GroupChoices:
    """What each group gets by each of its choices: its requests run one after another.

    Arrays are [groups, choices].
    """

    def __init__(self, problem: PlanningProblem, groups: Sequence[Ints]) -> None:
        self._penalties = problem.penalties
        firsts = np.array([group[0] for group in groups])
        self.variant, self.worker = problem.variant[firsts], problem.worker[firsts]
        self.takes_time = self.variant != problem.short_circuit
        self.swap_s = problem.swap_s[firsts]
        counts = np.array([[len(group)] for group in groups])
        self.total_s = problem.latency_s[firsts] * counts
        places = np.arange(counts.max())
        # Requests that smaller groups lack are their first one again, and worthless.
        members = np.array(
            [[*group, *group[:1].repeat(len(places) - len(group))] for group in groups]
        )
        accuracy = np.where((places < counts)[:, :, None], problem.accuracy[members], 0.0)
        self._accuracy = _by_choice(accuracy)
        self._deadline_s = problem.deadline_s[members, 0][:, None]
        turns_s = problem.latency_s[firsts][:, :, None] * (places + 1)
        self._ends_s = turns_s + _by_choice(problem.beside_s[members])
        """[groups, choices, requests]: what is added to the group's start for completions."""
        self._penalty_kind = problem.penalty_kind[firsts][:, :1, None]

    def gained(self, start_s: Floats, group: Ints | int) -> Floats:
        """[..., choices]: the utility of a group for each of them, begun at `start_s`."""
        late = penalty_by_kind(
            self._penalties,
            self._penalty_kind[group],
            self._deadline_s[group],
            start_s[..., None] + self._ends_s[group],
        )
        gained = (self._accuracy[group] * (1.0 - late)).sum(axis=-1)
        return np.where(self.variant[group] < 0, -np.inf, gained)  # no choice


def _by_choice(values: Floats) -> Floats:
    """[groups, choices, requests] of [groups, requests, choices]."""
    return np.ascontiguousarray(values.transpose(0, 2, 1))


class _Search:
    """Extends partial plans, a row each, by groups and their choices."""

    def __init__(self, problem: PlanningProblem, groups: Sequence[Ints], budget: int) -> None:
        self._budget = budget
        workers = len(problem.workers)
        self.free = slice(_STATE, _STATE + workers)
        self._loaded = slice(_STATE + workers, _STATE + 2 * workers)
        self._of = GroupChoices(problem, groups)
        self.choices = self._of.variant.shape[1]
        """Of a group at most."""
        takes_s = np.where(self._of.takes_time, self._of.total_s + self._of.swap_s, 0.0)
        self._step_s = max(float(takes_s.max(axis=1).sum()) / _BOUND_TIMES, _ROUNDING)

    def _soonest(self, free_s: Floats) -> Floats:
        """[plans, groups]: the most that each group can get once a worker is free."""
        first_s = free_s[:, : max(1, free_s.shape[1] - 1)].min(axis=1)
        times, which = np.unique(first_s // self._step_s, return_inverse=True)
        groups = np.arange(len(self._of.variant))
        starts = np.where(self._of.takes_time, (times * self._step_s)[:, None, None], 0.0)
        return np.asarray(self._of.gained(starts, groups).max(axis=-1)[which])

    def extended(self, partials: Floats, least: float) -> Floats:
        """Every plan with every choice for each group not done, if it can be worth `least`.

        None where the budget is spent.
        """
        free_s, done = partials[:, self.free], partials[:, _DONE].astype(np.int64)
        is_left = done[:, None] & (1 << np.arange(len(self._of.variant))) == 0
        rest = np.where(is_left, self._soonest(free_s), 0.0)
        most = partials[:, _UTILITY] + rest.sum(axis=1)
        plan, group = np.nonzero(is_left & (most >= least)[:, None])
        self._budget -= len(plan) * self.choices
        if self._budget < 0:
            return partials[:0]
        variant, worker = self._of.variant[group], self._of.worker[group]
        is_loaded = partials[plan[:, None], self._loaded.start + worker] == variant
        starts = free_s[plan[:, None], worker] + np.where(is_loaded, 0.0, self._of.swap_s[group])
        gained = self._of.gained(starts, group)
        others = most[plan] - rest[plan, group]
        pair, choice = np.nonzero(others[:, None] + gained >= least)
        plan, group, worker = plan[pair], group[pair], worker[pair, choice]
        found = partials[plan]
        found[:, _UTILITY] += gained[pair, choice]
        found[:, _DONE] += 1 << group
        found[:, _ORIGIN] = np.stack([plan, group, choice], axis=1)
        timed = np.flatnonzero(self._of.takes_time[group, choice])
        ends_s = starts[pair, choice] + self._of.total_s[group, choice]
        found[timed, self.free.start + worker[timed]] = ends_s[timed]
        found[timed, self._loaded.start + worker[timed]] = self._of.variant[group, choice][timed]
        return found

    def without_dominated(self, partials: Floats) -> Floats:
        """Drop plans for which another of their kind is nowhere later and as good.

        Compared with the best of those whose workers are free earlier together, and with the last.
        """
        workers = self.free.stop - self.free.start - 1  # without that of short circuits
        time_s = partials[:, self.free][:, :workers].sum(axis=1)
        kinds = np.concatenate([partials[:, [_DONE]], partials[:, self._loaded]], axis=1)
        order = np.lexsort((-partials[:, _UTILITY], time_s, *kinds.T[::-1]))
        partials, kinds = partials[order], kinds[order]
        utility, rows = partials[:, _UTILITY], np.arange(len(partials))
        is_new = np.ones(len(partials), bool)
        is_new[1:] = (kinds[1:] != kinds[:-1]).any(axis=1)
        kind = np.cumsum(is_new)
        raised = utility + kind * (np.abs(utility).max(initial=0.0) * 2.0 + 1.0)
        rises = np.where(np.maximum.accumulate(raised) == raised, rows, 0)
        best = np.concatenate([[0], np.maximum.accumulate(rises)])[:-1]
        is_dominated = np.zeros(len(partials), bool)
        last = (np.maximum(rows - at, 0) for at in range(1, _COMPARED if workers > 1 else 1))
        for other in (best, *last):
            is_dominated |= (
                (kind[other] == kind)
                & (other < rows)
                & (utility[other] >= utility)
                & (partials[other][:, self.free] <= partials[:, self.free]).all(axis=1)
            )
        return partials[~is_dominated]
