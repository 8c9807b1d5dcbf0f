"""The selection policies by name: a window in, a plan out; Wolfrath et al. 2025, section 6.1.

A plug-in is a function of the problem that returns its steps. Data-awareness and the short circuit
are options of each; `sneakpeek` and `refined` are `grouped` with everything that the applications
offer. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from registry.domain.application import SelectionPolicy
from registry.domain.policy_names import SELECTION
from variants.planning.planning_problem import (
    Ints,
    PlanningProblem,
    mean_utility,
    plan_of,
    planning_problem,
)
from variants.planning.search import (
    best_of_all,
    by_application,
    by_arrival,
    by_deadline,
    by_priority,
    place_greedily,
    search,
    share_among_workers,
)
from variants.planning.window import SelectionOptions, SelectionPlan, Window

PLAIN: Final = SelectionOptions()
FULL: Final = SelectionOptions(is_data_aware=True, short_circuit=True, splits_groups=True)
_GROUP_PLANS: Final = 700
"""Plans of up to tau groups that are evaluated: some 4 ms for 24 requests."""
_EXACT_PLANS: Final = 30_000
"""All of 5 requests with 3 variants: some 15 ms."""
_FEW: Final = 18
"""For half as many requests `refined` evaluates twice the plans in the same time, and so on."""


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
    """Algorithm 1, its order by the search; over tau, also without splitting if that is better.

    Splitting into more subgroups than can be ordered well lost up to 0.11 of utility.
    """
    if len(problem.requests) == 1:
        return _lo_edf(problem)
    groups = by_application(problem, is_split=problem.options.splits_groups)
    plan = _group_plan(problem, groups)
    if not problem.options.splits_groups or len(groups) <= problem.options.max_exact_groups:
        return plan
    whole = _group_plan(problem, by_application(problem, is_split=False))
    return max(plan, whole, key=lambda each: mean_utility(problem, each))


def _group_plan(problem: PlanningProblem, groups: Sequence[Ints]) -> list[int]:
    greedy = place_greedily(problem, share_among_workers(problem, groups))
    if problem.has_one_worker and len(groups) <= problem.options.max_exact_groups:
        return search(problem, groups, [greedy], _GROUP_PLANS)
    return greedy


def _exact(problem: PlanningProblem) -> list[int]:
    """Of a window that is too large, the plan of `refined`: users choose policies by a header."""
    return best_of_all(problem, by_arrival(problem), _EXACT_PLANS) or _refined(problem)


def _refined(problem: PlanningProblem) -> list[int]:
    if len(problem.requests) == 1:
        return _lo_edf(problem)
    starts = (_grouped(problem), _lo_priority(problem), _lo_edf(problem))
    budget = problem.options.max_evaluations * max(1, _FEW // len(problem.requests))
    return search(problem, by_arrival(problem), starts, budget)


_RULES: Final[Mapping[str, Callable[[PlanningProblem], list[int]]]] = {
    SelectionPolicy.LO_EDF: _lo_edf,
    SelectionPolicy.LO_PRIORITY: _lo_priority,
    SelectionPolicy.GROUPED: _grouped,
    SelectionPolicy.SNEAKPEEK: _grouped,
    SelectionPolicy.EXACT: _exact,
    SelectionPolicy.REFINED: _refined,
}
