"""The best plan over all orders of groups and all choices for each of them.

Dynamic programming over the set of groups that are done: of two partial plans with the same groups
done and the same variants loaded, one that is later and no better is dropped. That loses nothing,
since utility never rises with time. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gateway.selection.greedy_placement import group_ends, group_utility
from gateway.selection.planning_problem import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.selection.planning_problem import Floats, Ints, PlanningProblem


@dataclass(frozen=True, slots=True)
class _Partial:
    """Partial plans in which the same groups are done."""

    utility: Floats
    """[plans]."""
    free_s: Floats
    """[plans, workers]."""
    loaded: Ints
    """[plans, workers]."""
    origin: Ints
    """[plans, 4]: groups done before, plan among those, group done last, its choice."""

    def take(self, kept: Ints) -> _Partial:
        return _Partial(self.utility[kept], self.free_s[kept], self.loaded[kept], self.origin[kept])


def best_order(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Step]:
    """The steps of the best plan; of equally good ones, one that ends first."""
    everything = (1 << len(groups)) - 1
    start = _Partial(
        np.zeros(1), problem.free_s[None, :], problem.loaded[None, :], np.zeros((1, 4), np.int64)
    )
    found: dict[int, list[_Partial]] = {0: [start]}
    kept: dict[int, _Partial] = {}
    for done in range(everything + 1):
        kept[done] = partial = _without_dominated(_joined(found.pop(done)))
        for at, group in enumerate(groups):
            if not done >> at & 1:
                longer = _extend(problem, partial, done, at, group)
                found.setdefault(done | 1 << at, []).append(longer)
    return _steps(problem, groups, kept, everything)


def _extend(
    problem: PlanningProblem, partial: _Partial, done: int, at: int, group: Ints
) -> _Partial:
    """Every plan with every choice for one more group."""
    choices = problem.choices[problem.application_of[group[0]]]
    ends = group_ends(problem, group, choices, partial.free_s, partial.loaded)
    gained = group_utility(problem, group, choices, ends)
    plans, options = gained.shape
    free = np.repeat(partial.free_s, options, axis=0)
    loaded = np.repeat(partial.loaded, options, axis=0)
    rows = np.arange(plans * options)
    workers, variants = np.tile(choices.workers, plans), np.tile(choices.variants, plans)
    takes_time = variants != problem.short_circuit
    free[rows, workers] = np.where(takes_time, ends[:, :, -1].ravel(), free[rows, workers])
    loaded[rows, workers] = np.where(takes_time, variants, loaded[rows, workers])
    origin = np.empty((plans * options, 4), np.int64)
    origin[:, 0], origin[:, 2] = done, at
    origin[:, 1], origin[:, 3] = np.divmod(rows, options)
    return _Partial((partial.utility[:, None] + gained).ravel(), free, loaded, origin)


def _joined(parts: Sequence[_Partial]) -> _Partial:
    return _Partial(
        np.concatenate([each.utility for each in parts]),
        np.concatenate([each.free_s for each in parts]),
        np.concatenate([each.loaded for each in parts]),
        np.concatenate([each.origin for each in parts]),
    )


def _without_dominated(partial: _Partial) -> _Partial:
    """Drop plans for which another, with the same variants loaded, is nowhere later and as good."""
    workers = partial.free_s.shape[1] - 1  # without the one that answers short circuits
    code = np.zeros(len(partial.utility), np.int64)
    for worker in range(workers):
        code = code * (partial.loaded.max() + 2) + partial.loaded[:, worker] + 1
    total = partial.free_s[:, :workers].sum(axis=1)
    order = np.lexsort((-partial.utility, total, code))
    sorted_ = partial.take(order)
    if workers == 1:
        return sorted_.take(np.flatnonzero(_rises(sorted_.utility, code[order])))
    keep: list[int] = []
    codes = code[order]
    for at in range(len(order)):
        rivals = np.array([other for other in keep if codes[other] == codes[at]], np.int64)
        if len(rivals):
            is_early = (sorted_.free_s[rivals] <= sorted_.free_s[at]).all(axis=1)
            if (is_early & (sorted_.utility[rivals] >= sorted_.utility[at])).any():
                continue
        keep.append(at)
    return sorted_.take(np.array(keep))


def _rises(utility: Floats, code: Ints) -> Ints:
    """Where utility exceeds every value before it with the same code; codes are sorted."""
    offset = np.concatenate([[0], np.cumsum(code[1:] != code[:-1])]) * (utility.max() + 1.0)
    highest = np.maximum.accumulate(utility + offset)
    rises = np.ones(len(utility), bool)
    rises[1:] = highest[1:] > highest[:-1]
    return np.asarray(rises)


def _steps(
    problem: PlanningProblem, groups: Sequence[Ints], kept: dict[int, _Partial], everything: int
) -> list[Step]:
    """Walk back from the best complete plan."""
    last = kept[everything]
    plan = int(np.lexsort((last.free_s.sum(axis=1), -last.utility))[0])
    done, blocks = everything, []
    while done:
        before, parent, at, choice = kept[done].origin[plan].tolist()
        choices = problem.choices[problem.application_of[groups[at][0]]]
        variant, worker = int(choices.variants[choice]), int(choices.workers[choice])
        blocks.append([Step(int(request), variant, worker) for request in groups[at]])
        done, plan = before, parent
    return [step for block in reversed(blocks) for step in block]
