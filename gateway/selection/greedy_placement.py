"""Places groups of requests one after another, each where its mean utility is highest (eq. 13).

A group has one variant, on one worker, and begins when that worker is free. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gateway.selection.planning_problem import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.selection.planning_problem import Choices, Floats, Ints, PlanningProblem


def place_greedily(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Step]:
    """The steps of all groups; ties go to the earlier completion, then to the first name."""
    free, loaded = problem.free_s.copy(), problem.loaded.copy()
    steps: list[Step] = []
    for group in groups:
        choices = problem.choices[problem.application_of[group[0]]]
        ends = group_ends(problem, group, choices, free[None, :], loaded[None, :])[0]
        values = group_utility(problem, group, choices, ends)
        steps += _take(group, choices, _best(values, ends[:, -1]), ends, free, loaded, problem)
    return steps


def place_most_accurate(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Step]:
    """As `place_greedily`, but each group has its most accurate variant whatever its lateness."""
    free, loaded = problem.free_s.copy(), problem.loaded.copy()
    steps: list[Step] = []
    for group in groups:
        choices = problem.choices[problem.application_of[group[0]]]
        ends = group_ends(problem, group, choices, free[None, :], loaded[None, :])[0]
        values = problem.accuracy[group[:, None], choices.variants].mean(axis=0)
        steps += _take(group, choices, _best(values, ends[:, -1]), ends, free, loaded, problem)
    return steps


def group_ends(
    problem: PlanningProblem, group: Ints, choices: Choices, free_s: Floats, loaded: Ints
) -> Floats:
    """When each request of a group ends, from the time of planning: [states, choices, requests].

    `free_s` and `loaded` are [states, workers].
    """
    latency = problem.latency_s[choices.workers, choices.variants]
    swap = problem.swap_s[choices.workers, choices.variants]
    starts = free_s[:, choices.workers] + np.where(
        loaded[:, choices.workers] == choices.variants, 0.0, swap
    )
    return np.asarray(
        starts[:, :, None] + latency[:, None] * np.arange(1, len(group) + 1, dtype=np.float64)
    )


def group_utility(
    problem: PlanningProblem, group: Ints, choices: Choices, ends_s: Floats
) -> Floats:
    """Sum of the utilities of a group's requests, for ends [..., choices, requests]."""
    around = problem.around_s[choices.workers, choices.variants]
    late = problem.penalty_of_group(group, ends_s + around[:, None] + problem.age_s[group])
    accuracy = problem.accuracy[group[None, :], choices.variants[:, None]]
    return np.asarray((accuracy * (1.0 - late)).sum(axis=-1))


def _best(values: Floats, ends_s: Floats) -> int:
    return min(range(len(values)), key=lambda at: (-values[at], ends_s[at], at))


def _take(
    group: Ints, choices: Choices, best: int, ends_s: Floats, free_s: Floats, loaded: Ints,
    problem: PlanningProblem,
) -> list[Step]:  # fmt: skip
    """The group's steps; sets when the worker is free and what it has loaded."""
    variant, worker = int(choices.variants[best]), int(choices.workers[best])
    if variant != problem.short_circuit:
        free_s[worker], loaded[worker] = ends_s[best, -1], variant
    return [Step(int(request), variant, worker) for request in group]
