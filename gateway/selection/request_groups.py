"""Orders requests, and groups them by application and likely class.

Source: Wolfrath et al. 2025, section 5. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gateway.selection.priority import group_priority

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.selection.planning_problem import Ints, PlanningProblem

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
