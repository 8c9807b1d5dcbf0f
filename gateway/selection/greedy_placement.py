"""Orders requests and groups of them, and places them one after another; Wolfrath et al. 2025, 5.

A group has one variant, on one worker, and begins when that worker is free; each goes where its
mean utility is highest (eq. 13). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from gateway.selection.planning_problem import Ints, PlanningProblem, Step
from gateway.selection.utility import group_priority, penalty_of_one

_LIKELY: Final = 0.5
"""A class with a higher probability has a subgroup of its own; section 5.3.2."""


def by_deadline(problem: PlanningProblem) -> list[Ints]:
    """Each request alone, by its time due; requests are sorted by arrival and id already."""
    due = problem.deadline_s - problem.age_s
    return [np.array([at]) for at in np.argsort(due, kind="stable")]


def by_priority(problem: PlanningProblem) -> list[Ints]:
    """Each request alone, by falling priority."""
    return [np.array([at]) for at in np.argsort(-problem.priority, kind="stable")]


def by_application(problem: PlanningProblem, *, is_split: bool) -> list[Ints]:
    """Groups by falling priority, as are their requests; `is_split`: also by likely class."""
    members: dict[tuple[int, int], list[int]] = {}
    for at in np.argsort(-problem.priority, kind="stable").tolist():
        likely = _likely_class(problem, at) if is_split else -1
        members.setdefault((problem.application_of[at], likely), []).append(at)
    return sort_groups(problem, [np.array(group) for _, group in sorted(members.items())])


def sort_groups(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Ints]:
    """By falling mean priority; ties keep the order."""
    return sorted(groups, key=lambda group: -group_priority(problem.priority[group]))


def limit_sizes(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Ints]:
    """Split groups above the maximum size (section 8), by falling priority again.

    By default several workers get an equal share each of a group.
    """
    workers = len(problem.workers) - 1
    limited: list[Ints] = []
    for group in groups:
        most = problem.options.max_group or -(-len(group) // workers)
        parts = -(-len(group) // most)
        limited += np.array_split(group, parts) if parts > 1 else [group]
    return sort_groups(problem, limited) if len(limited) > len(groups) else list(groups)


def _likely_class(problem: PlanningProblem, request: int) -> int:
    theta = problem.theta[request]
    if theta is None or not problem.may_split[problem.application_of[request]]:
        return -1
    likely = int(np.argmax(theta))
    return likely if theta[likely] > _LIKELY else -1


def place_greedily(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Step]:
    """The steps of all groups; ties go to the earlier completion, then to the first name."""
    return _place(problem, groups, by_accuracy=False)[0]


def greedy_utility(problem: PlanningProblem, groups: Sequence[Ints]) -> float:
    """The sum of utilities of the steps of `place_greedily`."""
    return -_place(problem, groups, by_accuracy=False)[1]


def place_most_accurate(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Step]:
    """As `place_greedily`, but each group has its most accurate variant whatever its lateness."""
    return _place(problem, groups, by_accuracy=True)[0]


@dataclass(slots=True)
class _Workers:
    """When each is free and what it has loaded, after what is placed."""

    free_s: list[float]
    loaded: list[int]


def _place(
    problem: PlanningProblem, groups: Sequence[Ints], *, by_accuracy: bool
) -> tuple[list[Step], float]:
    """The steps, and the sum of what their choices lose."""
    lost = 0.0
    workers = _Workers(problem.free_s.tolist(), problem.loaded.tolist())
    steps: list[Step] = []
    for group in groups:
        if len(group) == 1:
            best = _best_of_one(problem, int(group[0]), workers, by_accuracy=by_accuracy)
        else:
            best = _best_of_group(problem, group, workers, by_accuracy=by_accuracy)
        if best.variant != problem.short_circuit:
            workers.free_s[best.worker], workers.loaded[best.worker] = best.end_s, best.variant
        lost += best.loss
        steps += [Step(request, best.variant, best.worker) for request in group.tolist()]
    return steps, lost


class _Choice(NamedTuple):
    """Compared in this order: the least is the best."""

    loss: float
    end_s: float
    at: int
    variant: int
    worker: int


def _best_of_group(
    problem: PlanningProblem, group: Ints, workers: _Workers, *, by_accuracy: bool
) -> _Choice:
    choices = problem.choices[problem.application_of[group[0]]]
    is_loaded = np.array(workers.loaded)[choices.workers] == choices.variants
    starts = np.array(workers.free_s)[choices.workers] + np.where(is_loaded, 0.0, choices.swap_s)
    ends = starts[:, None] + choices.latency_s[:, None] * np.arange(1.0, len(group) + 1.0)
    values = problem.accuracy[group, choices.variants[:, None]]
    if not by_accuracy:
        completion = ends + choices.around_s[:, None] + problem.age_s[group]
        values = values * (1.0 - problem.penalty_of_group(group, completion))
    columns = (-values.sum(axis=1), ends[:, -1], choices.variants, choices.workers)
    loss, end, variant, worker = (each.tolist() for each in columns)
    return min(map(_Choice, loss, end, range(len(loss)), variant, worker))


def _best_of_one(
    problem: PlanningProblem, request: int, workers: _Workers, *, by_accuracy: bool
) -> _Choice:
    """The best choice for a single request, without arrays: they take ten times as long."""
    age_s, deadline_s = float(problem.age_s[request]), float(problem.deadline_s[request])
    kind = problem.penalties[problem.penalty_kind[request]]
    free_s, loaded = workers.free_s, workers.loaded
    best = _Choice(math.inf, math.inf, -1, -1, -1)
    for at, row in enumerate(problem.steps.by_request[request]):
        variant, worker, latency_s, swap_s, around_s, value = row
        end_s = free_s[worker] + (0.0 if loaded[worker] == variant else swap_s) + latency_s
        if not by_accuracy:
            completion_s = end_s + around_s + age_s
            if completion_s > deadline_s:
                value *= 1.0 - penalty_of_one(kind, deadline_s, completion_s)
        if -value < best.loss or (-value == best.loss and end_s < best.end_s):
            best = _Choice(-value, end_s, at, variant, worker)
    return best
