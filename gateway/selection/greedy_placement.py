"""Orders requests and groups of them, and places them one after another; Wolfrath et al. 2025, 5.

A group has one variant, on one worker, and begins when that worker is free; each goes where its
mean utility is highest (eq. 13). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gateway.selection.planning_problem import Choice, Ints, PlanningProblem
from gateway.selection.utility import penalty_of_one


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
    """The steps of all groups; ties go to the earlier completion, then to the first name.

    `by_accuracy`: each group has its most accurate variant whatever its lateness.
    """
    free_s, loaded = problem.free_s.tolist(), problem.loaded.tolist()
    steps: list[int] = []
    for group in groups:
        members = group.tolist()
        taken, value, end_s = -1, -math.inf, math.inf
        for at, choice in enumerate(problem.choices[members[0]]):
            start_s = free_s[choice.worker]
            if loaded[choice.worker] != choice.variant:
                start_s += choice.swap_s
            found = _value(problem, members, at, None if by_accuracy else start_s)
            ends_s = start_s + choice.latency_s * len(members)
            if found > value or (found == value and ends_s < end_s):
                taken, value, end_s = at, found, ends_s
        best = problem.choices[members[0]][taken]
        if best.variant != problem.short_circuit:
            free_s[best.worker], loaded[best.worker] = end_s, best.variant
        steps += [problem.choices[each][taken].step for each in members]
    return steps


def _value(
    problem: PlanningProblem, members: Sequence[int], at: int, start_s: float | None
) -> float:
    """The utilities of requests with the same choice from `start_s` on; None: their accuracies."""
    total = 0.0
    for place, request in enumerate(members, 1):
        choice: Choice = problem.choices[request][at]
        value = choice.accuracy
        if start_s is not None:
            deadline_s = problem.requests[request].deadline_s
            completion_s = start_s + choice.latency_s * place + choice.beside_s
            if completion_s > deadline_s:
                kind = problem.penalties[problem.penalty_kind[request, 0]]
                value *= 1.0 - penalty_of_one(kind, deadline_s, completion_s)
        total += value
    return total
