"""The selection policies by name: a window in, a plan out; Wolfrath et al. 2025, section 6.1.

A plug-in is a function of the problem that returns its steps. Data-awareness and the short circuit
are options of each; `sneakpeek` and `refined` are `grouped` with everything that the applications
offer. Pure.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from registry.domain.application import SelectionPolicy
from registry.domain.loading_choice import SELECTION
from variants.planning.best_order import best_order
from variants.planning.greedy_placement import (
    by_application,
    by_deadline,
    by_priority,
    place_greedily,
    share_among_workers,
)
from variants.planning.local_search import improve
from variants.planning.planning_problem import (
    Ints,
    PlanningProblem,
    mean_utility,
    plan_of,
    planning_problem,
)
from variants.planning.window import SelectionOptions, SelectionPlan, Window

PLAIN: Final = SelectionOptions()
FULL: Final = SelectionOptions(is_data_aware=True, short_circuit=True, splits_groups=True)
_FEW_REQUESTS: Final = 6
"""Of so many on one worker `refined` takes the best plan, which is found as soon as a good one. Of
7 and 8 two thirds would be, in twice the time."""
_QUICK_PLANS: Final = 10_000
"""Partial plans of that search."""


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
    """Algorithm 1; over tau, also the plan without splitting, whichever is expected better.

    Splitting into more subgroups than can be ordered well lost up to 0.11 of utility.
    """
    if len(problem.requests) == 1:
        return _lo_edf(problem)
    groups = by_application(problem, is_split=problem.options.splits_groups)
    plan = _group_plan(problem, groups)
    if not problem.options.splits_groups or len(groups) <= problem.options.max_exact_groups:
        return plan
    reached = mean_utility(problem, plan)
    whole = _group_plan(problem, by_application(problem, is_split=False), at_least=reached)
    return whole if mean_utility(problem, whole) > reached else plan


def _group_plan(
    problem: PlanningProblem, groups: Sequence[Ints], *, at_least: float = -math.inf
) -> list[int]:
    """`at_least`: the mean utility below which a plan is of no use, and need not be best."""
    best = None
    if problem.has_one_worker and len(groups) <= problem.options.max_exact_groups:
        best = best_order(problem, groups, at_least=at_least)
    return best or place_greedily(problem, share_among_workers(problem, groups))


def _exact(problem: PlanningProblem) -> list[int]:
    """Of a window that is too large, the plan of `refined`: users choose policies by a header."""
    return best_order(problem, by_deadline(problem)) or _refined(problem)


def _refined(problem: PlanningProblem) -> list[int]:
    if len(problem.requests) == 1:
        return _lo_edf(problem)
    starts = (_grouped(problem), _lo_priority(problem), _lo_edf(problem))
    if problem.has_one_worker and len(problem.requests) <= _FEW_REQUESTS:
        reached = max(mean_utility(problem, start) for start in starts)
        best = best_order(problem, by_deadline(problem), at_least=reached, max_plans=_QUICK_PLANS)
        if best is not None:
            return best
    return improve(problem, starts)


_RULES: Final[Mapping[str, Callable[[PlanningProblem], list[int]]]] = {
    SelectionPolicy.LO_EDF: _lo_edf,
    SelectionPolicy.LO_PRIORITY: _lo_priority,
    SelectionPolicy.GROUPED: _grouped,
    SelectionPolicy.SNEAKPEEK: _grouped,
    SelectionPolicy.EXACT: _exact,
    SelectionPolicy.REFINED: _refined,
}
