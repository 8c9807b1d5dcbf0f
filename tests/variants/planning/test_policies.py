"""Properties of every selection policy on random windows."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from registry.domain.application import Penalty, SelectionPolicy
from registry.domain.loading_choice import SELECTION
from tests.variants.planning.windows import random_window
from variants.planning import local_search
from variants.planning.best_order import best_order
from variants.planning.greedy_placement import by_application, by_deadline, share_among_workers
from variants.planning.planning_problem import evaluated, mean_utility, plan_of, planning_problem
from variants.planning.selection_policies import FULL, PLAIN, plan_window
from variants.planning.window import SHORT_CIRCUIT, SelectionOptions

if TYPE_CHECKING:
    from variants.planning.planning_problem import Floats, Ints, PlanningProblem
    from variants.planning.window import SelectionPlan, Window

DATA_AWARE = SelectionOptions(is_data_aware=True)
ALL_OPTIONS = [
    pytest.param(PLAIN, id="plain"),
    pytest.param(DATA_AWARE, id="data-aware"),
    pytest.param(FULL, id="full"),
]


def _windows(count: int, *, seed: int, requests: int = 5, workers: int = 1) -> list[Window]:
    return [
        random_window(
            seed * 1000 + at,
            requests=1 + at % requests,
            workers=workers,
            applications=1 + at % 3,
            variants=1 + at % 3,
            has_evidence=True,
        )
        for at in range(count)
    ]


def _steps(problem: PlanningProblem) -> list[list[int]]:
    """Those that each request may take."""
    steps = np.arange(problem.variant.size).reshape(problem.variant.shape)
    return [each[is_one].tolist() for each, is_one in zip(steps, problem.variant >= 0, strict=True)]


@pytest.mark.parametrize("options", ALL_OPTIONS)
@pytest.mark.parametrize("policy", list(SELECTION))
@pytest.mark.parametrize("workers", [1, 2])
def test_a_plan_is_a_permutation_whatever_the_order_of_the_input(
    policy: str, options: SelectionOptions, workers: int
) -> None:
    for at, window in enumerate(_windows(6, seed=1, requests=4, workers=workers)):
        plan = plan_window(policy, window, options)
        assert sorted(each.request for each in plan.assignments) == sorted(
            each.id for each in window.requests
        )
        for each in plan.assignments:
            assert (each.worker == "") == (each.variant == SHORT_CIRCUIT)
        rng = random.Random(at)
        shuffled = replace(
            window,
            requests=tuple(rng.sample(window.requests, len(window.requests))),
            applications=tuple(
                replace(each, variants=tuple(rng.sample(each.variants, len(each.variants))))
                for each in rng.sample(window.applications, len(window.applications))
            ),
            workers=window.workers[::-1],
        )
        assert plan_window(policy, shuffled, options) == plan


@pytest.mark.parametrize("options", ALL_OPTIONS)
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_beats_exact(options: SelectionOptions, workers: int) -> None:
    for window in _windows(6, seed=2, requests=4, workers=workers):
        best = plan_window(SelectionPolicy.EXACT, window, options).mean_utility
        for policy in SELECTION:
            assert plan_window(policy, window, options).mean_utility <= best + 1e-9


@pytest.mark.parametrize("options", ALL_OPTIONS)
@pytest.mark.parametrize("workers", [1, 2])
def test_exact_equals_enumeration(options: SelectionOptions, workers: int) -> None:
    for window in _windows(6, seed=3, requests=3, workers=workers):
        problem = planning_problem(window, options)
        best = max(
            plan_of(problem, steps).mean_utility
            for order in itertools.permutations(_steps(problem))
            for steps in itertools.product(*order)
        )
        exact = plan_window(SelectionPolicy.EXACT, window, options)
        assert exact.mean_utility == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_grouped_is_the_best_grouped_plan(options: SelectionOptions) -> None:
    for window in _windows(20, seed=4, requests=6):
        problem = planning_problem(window, options)
        groups, steps = by_application(problem, is_split=options.splits_groups), _steps(problem)
        if len(groups) > 4:
            continue
        best = max(
            plan_of(
                problem,
                [steps[request][chosen[at]] for at in order for request in groups[at].tolist()],
            ).mean_utility
            for order in itertools.permutations(range(len(groups)))
            for chosen in itertools.product(*(range(len(steps[each[0]])) for each in groups))
        )
        grouped = plan_window(SelectionPolicy.GROUPED, window, options)
        assert grouped.mean_utility == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_refined_is_the_optimum_of_few_requests_on_one_worker(options: SelectionOptions) -> None:
    """But for windows whose best plan takes long to find."""
    lower = 0
    for window in _windows(108, seed=9, requests=6):
        best = plan_window(SelectionPolicy.EXACT, window, options).mean_utility
        refined = plan_window(SelectionPolicy.REFINED, window, options).mean_utility
        lower += refined < best - 1e-9
    assert lower <= 1


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_refined_is_near_the_optimum(options: SelectionOptions) -> None:
    shares = []
    for window in _windows(36, seed=5, requests=6, workers=2):
        best = plan_window(SelectionPolicy.EXACT, window, options).mean_utility
        refined = plan_window(SelectionPolicy.REFINED, window, options).mean_utility
        shares.append(refined / best if best else 1.0)
        assert refined >= plan_window(SelectionPolicy.GROUPED, window, options).mean_utility - 1e-9
    assert np.mean(shares) >= 0.99


@pytest.mark.parametrize("budget", [0, 1, 100, 800])
def test_refined_never_exceeds_its_budget_of_evaluations(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def counted(problem: PlanningProblem, plans: Ints) -> tuple[Ints, Floats, Floats]:
        counts.append(len(plans))
        return evaluated(problem, plans)

    monkeypatch.setattr(local_search, "evaluated", counted)
    window = random_window(7, requests=12, has_evidence=True)
    refined = plan_window(SelectionPolicy.REFINED, window, replace(FULL, max_evaluations=budget))
    starts = 3
    assert min(budget, 1) <= sum(counts) - starts <= budget
    sneakpeek = plan_window(SelectionPolicy.SNEAKPEEK, window)
    assert refined.mean_utility >= sneakpeek.mean_utility - 1e-9


@pytest.mark.parametrize("options", ALL_OPTIONS)
def test_a_search_for_what_beats_a_known_plan_finds_the_best_plan_or_none(
    options: SelectionOptions,
) -> None:
    for window in _windows(30, seed=8):
        problem = planning_problem(window, options)
        groups = by_deadline(problem)
        best = best_order(problem, groups)
        assert best is not None
        reached = mean_utility(problem, best)
        assert best_order(problem, groups, at_least=reached - 1e-6) == best
        assert best_order(problem, groups, at_least=reached + 1e-6) is None


def test_changes_that_help_alone_are_made_together() -> None:
    """Without deadlines in danger each request's best choice is independent of the others'."""
    window = random_window(3, requests=12, penalty=Penalty.NONE)
    problem = planning_problem(window, PLAIN)
    worst = [min(each, key=problem.accuracy.take) for each in _steps(problem)]
    changes = 12 * 2
    within = planning_problem(window, replace(PLAIN, max_evaluations=3 * changes))
    best = problem.accuracy.max(axis=1).sum()
    improved = local_search.improve(within, [worst])
    assert mean_utility(within, improved) * 12 == pytest.approx(best)


def test_exact_is_refined_for_windows_that_are_too_large() -> None:
    window = random_window(9, requests=64, applications=3, has_evidence=True)
    for options in (PLAIN, FULL):
        exact = plan_window(SelectionPolicy.EXACT, window, options)
        assert exact == plan_window(SelectionPolicy.REFINED, window, options)


def test_groups_with_too_many_variants_for_all_orders_are_placed_greedily() -> None:
    window = random_window(9, requests=20, applications=5, variants=40)
    bounded = replace(PLAIN, max_partial_plans=1000)
    greedy = replace(PLAIN, max_exact_groups=0)
    plan = plan_window(SelectionPolicy.GROUPED, window, bounded)
    assert plan == plan_window(SelectionPolicy.GROUPED, window, greedy)
    assert len(plan.assignments) == 20


def test_several_workers_share_each_group() -> None:
    problem = planning_problem(random_window(5, requests=9, applications=1, workers=2), PLAIN)
    [group] = by_application(problem, is_split=False)
    parts = share_among_workers(problem, [group])
    assert sorted(map(len, parts)) == [4, 5]
    assert sorted(np.concatenate(parts).tolist()) == list(range(9))
    priorities = [problem.priority[part].mean() for part in parts]
    assert priorities == sorted(priorities, reverse=True)


@pytest.mark.parametrize("policy", [SelectionPolicy.GROUPED, SelectionPolicy.SNEAKPEEK])
def test_many_groups_are_ordered_greedily_and_split_only_where_that_is_better(
    policy: SelectionPolicy,
) -> None:
    for seed in range(4):
        window = random_window(seed, requests=24, applications=8, has_evidence=True)
        plan = plan_window(policy, window)
        assert len(plan.assignments) == 24
        unsplit = replace(FULL, splits_groups=False)
        if policy == SelectionPolicy.SNEAKPEEK:
            assert plan.mean_utility >= plan_window(policy, window, unsplit).mean_utility - 1e-9


def test_without_penalty_the_most_accurate_variant_wins() -> None:
    window = random_window(3, requests=6, penalty=Penalty.NONE)
    best = {
        app.name: max(app.variants, key=lambda each: each.accuracy).name
        for app in window.applications
    }
    owner = {each.id: each.application for each in window.requests}
    for policy in SELECTION:
        for each in plan_window(policy, window).assignments:
            assert each.variant == best[owner[each.request]]


def test_late_evidence_means_profiled_accuracy() -> None:
    window = random_window(8, requests=6, has_evidence=True)
    blind = replace(
        window, requests=tuple(replace(each, evidence=None) for each in window.requests)
    )
    plan: SelectionPlan = plan_window(SelectionPolicy.LO_EDF, blind, DATA_AWARE)
    assert plan.assignments == plan_window(SelectionPolicy.LO_EDF, blind, PLAIN).assignments


def test_an_application_that_no_worker_can_serve_is_named() -> None:
    window = random_window(1, requests=2)
    idle = replace(window, workers=())
    with pytest.raises(ValueError, match="no worker can run a variant of application 'app"):
        plan_window(SelectionPolicy.LO_EDF, idle)
