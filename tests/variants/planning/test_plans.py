"""A hand-worked plan (eq. 1): latencies, swaps, workers, short circuits."""

from __future__ import annotations

import pytest

from registry.domain.application import Penalty, SelectionPolicy
from tests.variants.planning.windows import variant
from variants.planning.planning_problem import plan_of, planning_problem
from variants.planning.search import plan_window
from variants.planning.window import (
    SelectionOptions,
    SelectionPlan,
    Window,
    WindowApplication,
    WindowRequest,
    Worker,
)

FAST, SLOW = 0, 1
SHORT = 2


def _window(*workers: Worker) -> Window:
    app = WindowApplication(
        "digits",
        (variant("fast", [[6, 4], [4, 6]]), variant("slow", [[9, 1], [1, 9]])),
        Penalty.LINEAR,
        short_circuit_accuracy=0.5,
    )
    requests = [WindowRequest(f"r{at}", "digits", at / 100, 0.1) for at in range(4)]
    return Window(tuple(requests), (app,), workers, now_s=0.1)


def _planned(
    window: Window, steps: list[tuple[int, int, int]], *, short_circuit: bool = False
) -> SelectionPlan:
    """The plan of steps with a request, a variant and a worker each."""
    problem = planning_problem(window, SelectionOptions(short_circuit=short_circuit))
    chosen = zip(problem.variant.ravel().tolist(), problem.worker.ravel().tolist(), strict=True)
    found = {(at // problem.variant.shape[1], *each): at for at, each in enumerate(chosen)}
    return plan_of(problem, [found[each] for each in steps])


ONE = Worker("a", {"fast": 0.01, "slow": 0.04}, {"fast": 0.005, "slow": 0.02})


def test_each_request_takes_its_latency_and_a_swap_where_the_variant_changes() -> None:
    steps = [(0, FAST, 0), (1, FAST, 0), (2, SLOW, 0), (3, FAST, 0)]
    found = [each.completion_s for each in _planned(_window(ONE), steps).assignments]
    # Ends at 15, 25, 85 and 100 ms from 100 ms; arrivals at 0, 10, 20 and 30 ms.
    assert found == pytest.approx([0.115, 0.115, 0.165, 0.170], abs=1e-9)


def test_a_batch_pays_its_setup_where_the_variant_changes() -> None:
    batching = Worker("a", ONE.latency_s, ONE.swap_s, setup_s={"fast": 0.002, "slow": 0.003})
    steps = [(0, FAST, 0), (1, FAST, 0), (2, SLOW, 0), (3, FAST, 0)]
    found = [each.completion_s for each in _planned(_window(batching), steps).assignments]
    # Ends at 17, 27, 90 and 107 ms from 100 ms; arrivals at 0, 10, 20 and 30 ms.
    assert found == pytest.approx([0.117, 0.117, 0.170, 0.177], abs=1e-9)


def test_a_busy_worker_begins_later() -> None:
    busy = Worker("a", ONE.latency_s, ONE.swap_s, free_s=0.13)
    steps = [(0, SLOW, 0), (1, SLOW, 0), (2, FAST, 0), (3, FAST, 0)]
    found = [each.completion_s for each in _planned(_window(busy), steps).assignments]
    # It begins at 130 ms and swaps: ends at 190, 230, 245 and 255 ms.
    assert found == pytest.approx([0.190, 0.220, 0.225, 0.225], abs=1e-9)


def test_workers_run_side_by_side_and_a_short_circuit_takes_no_place() -> None:
    other = Worker("b", {"slow": 0.02}, {"slow": 0.01})
    steps = [(0, FAST, 0), (1, SHORT, 2), (2, SLOW, 1), (3, FAST, 0)]
    plan = _planned(_window(ONE, other), steps, short_circuit=True)
    found = {each.request: each for each in plan.assignments}
    assert found["r0"].completion_s == pytest.approx(0.115, abs=1e-9)
    assert found["r3"].completion_s == pytest.approx(0.095, abs=1e-9)
    assert found["r2"].completion_s == pytest.approx(0.110, abs=1e-9)
    assert found["r1"].completion_s == pytest.approx(0.090, abs=1e-9)
    assert (found["r1"].variant, found["r1"].worker) == ("short-circuit", "")
    # Expected accuracies 0.6, 0.5, 0.9, 0.6; r0 is 15 % late, r2 10 %.
    assert found["r0"].utility == pytest.approx(0.6 * 0.85, abs=1e-9)
    assert found["r2"].utility == pytest.approx(0.9 * 0.9, abs=1e-9)
    assert plan.mean_utility == pytest.approx((0.51 + 0.5 + 0.81 + 0.6) / 4, abs=1e-9)


def test_locally_optimal_takes_what_is_best_after_what_is_planned_before() -> None:
    plan = plan_window(SelectionPolicy.LO_EDF, _window(ONE))
    # r0: slow ends at 160 ms (0.9 * 0.4), fast at 115 ms (0.6 * 0.85). r1 to r3: fast again.
    assert [(each.request, each.variant) for each in plan.assignments] == [
        ("r0", "fast"),
        ("r1", "fast"),
        ("r2", "fast"),
        ("r3", "fast"),
    ]
    most = plan_window("max-accuracy-edf", _window(ONE))
    assert {each.variant for each in most.assignments} == {"slow"}
