"""Properties of every selection policy on random windows."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from registry.domain.application import Penalty, SelectionPolicy
from registry.policy_names import SELECTION
from research.selection.best_order import best_order
from tests.variants.planning.windows import random_window
from variants.planning import search
from variants.planning.planning_problem import evaluated, mean_utility, plan_of, planning_problem
from variants.planning.search import (
    FULL,
    PLAIN,
    PlanSearch,
    by_application,
    by_arrival,
    by_deadline,
    plan_window,
    share_among_workers,
)
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


def _optimum(window: Window, options: SelectionOptions) -> float:
    """The highest mean utility of any plan."""
    problem = planning_problem(window, options)
    best = best_order(problem, by_deadline(problem), max_plans=1_000_000)
    assert best is not None
    return mean_utility(problem, best)


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
def test_nothing_beats_the_optimum(options: SelectionOptions, workers: int) -> None:
    for window in _windows(6, seed=2, requests=4, workers=workers):
        best = _optimum(window, options)
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
        assert _optimum(window, options) == pytest.approx(best, abs=1e-9)


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


@pytest.mark.slow
@pytest.mark.parametrize("options", ALL_OPTIONS)
@pytest.mark.parametrize("workers", [1, 2])
def test_refined_is_almost_always_the_optimum_of_few_requests(
    options: SelectionOptions, workers: int
) -> None:
    shares = []
    for window in _windows(108, seed=9, requests=6, workers=workers):
        best = _optimum(window, options)
        refined = plan_window(SelectionPolicy.REFINED, window, options).mean_utility
        shares.append(refined / best if best else 1.0)
        assert refined >= plan_window(SelectionPolicy.GROUPED, window, options).mean_utility - 1e-9
    assert sum(share < 1 - 1e-9 for share in shares) <= 6
    assert np.mean(shares) >= 0.999


@pytest.mark.parametrize("budget", [0, 1, 100, 800])
def test_refined_never_exceeds_its_budget_of_evaluations(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def counted(problem: PlanningProblem, plans: Ints) -> tuple[Ints, Floats, Floats]:
        counts.append(len(plans))
        return evaluated(problem, plans)

    monkeypatch.setattr(search, "evaluated", counted)
    window = random_window(7, requests=24, applications=8, has_evidence=True)
    refined = plan_window(SelectionPolicy.REFINED, window, replace(FULL, max_evaluations=budget))
    starts = 3
    assert min(budget, 1) <= sum(counts) - starts <= budget
    sneakpeek = plan_window(SelectionPolicy.SNEAKPEEK, window)
    assert refined.mean_utility >= sneakpeek.mean_utility - 1e-9


def test_changes_that_help_alone_are_made_together() -> None:
    """Without deadlines in danger each request's best choice is independent of the others'."""
    window = random_window(3, requests=12, penalty=Penalty.NONE)
    problem = planning_problem(window, PLAIN)
    worst = [min(each, key=problem.accuracy.take) for each in _steps(problem)]
    changes = 12 * 2
    best = problem.accuracy.max(axis=1).sum()
    improved = PlanSearch(problem, by_arrival(problem), 3 * changes).best([worst])
    assert mean_utility(problem, improved) * 12 == pytest.approx(best)


def test_exact_is_refined_for_windows_that_are_too_large() -> None:
    window = random_window(9, requests=64, applications=3, has_evidence=True)
    for options in (PLAIN, FULL):
        exact = plan_window(SelectionPolicy.EXACT, window, options)
        assert exact == plan_window(SelectionPolicy.REFINED, window, options)


def test_what_is_not_done_within_its_budget_is_not_begun() -> None:
    window = random_window(9, requests=20, applications=5, variants=40)
    problem = planning_problem(window, PLAIN)
    assert PlanSearch(problem, by_arrival(problem), 1_000_000).all() is None
    assert len(plan_window(SelectionPolicy.GROUPED, window).assignments) == 20


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


def test_a_window_with_a_time_that_is_no_number_is_not_planned() -> None:
    window = random_window(1, requests=4)
    [worker] = window.workers
    no_number = dict.fromkeys(worker.latency_s, float("nan"))
    for broken in (replace(worker, latency_s=no_number), replace(worker, swap_s=no_number)):
        with pytest.raises(ValueError, match="a worker's time is no number"):
            plan_window(SelectionPolicy.REFINED, replace(window, workers=(broken,)))
