"""The offline optimum: cases computed by hand, exhaustive search, and the simulator's times."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from statistics import fmean

import pytest

from registry.domain.model import RoutingPolicy
from research.experiments.regret.optimum import SmallCase, optimum
from research.experiments.regret.runs import FIXED
from research.experiments.regret.small_cases import drawn_case, simulated_rows, solve


def _case(
    requests: list[tuple[float, str]], *, load_s: float = 1.0, places: int = 1, pods: int = 2
) -> SmallCase:
    names = sorted({model for _, model in requests})
    return SmallCase(
        tuple(requests),
        load_s=dict.fromkeys(names, load_s),
        infer_s=dict.fromkeys(names, 0.1),
        places=places,
        pods=pods,
    )


def test_requests_of_one_model_share_a_load() -> None:
    # One load: 1.1 and 1.2 s. A load at each pod: 1.1 s twice.
    assert optimum(_case([(0.0, "a"), (0.0, "a")])).total_s == pytest.approx(2.2)
    one_pod = optimum(_case([(0.0, "a"), (0.0, "a")], pods=1))
    assert one_pod.total_s == pytest.approx(2.3)
    assert [each.is_load for each in one_pod.steps] == [True, False]


def test_order_saves_a_load() -> None:
    # One place: a, a, b takes 1.1, 1.2 and 2.3 s, the order of arrival 1.1, 2.2, 3.3.
    found = optimum(_case([(0.0, "a"), (0.0, "b"), (0.0, "a")], pods=1))
    assert found.total_s == pytest.approx(1.1 + 1.2 + 2.3)
    assert [each.request for each in found.steps] == [0, 2, 1]


def test_the_model_used_next_is_kept() -> None:
    # Two places: c evicts b, since a comes again.
    case = _case([(0.0, "a"), (3.0, "b"), (6.0, "c"), (9.0, "a")], places=2, pods=1)
    found = optimum(case)
    assert found.total_s == pytest.approx(3 * 1.1 + 0.1)
    assert found.steps[2].evicted == "b"


def test_no_schedule_is_better() -> None:
    case = _case([(0.0, "a"), (0.2, "b"), (0.3, "a"), (0.9, "c"), (1.0, "b")], load_s=0.4, places=1)
    totals = [
        total_of(case, [order[:cut], order[cut:]])
        for order in itertools.permutations(range(5))
        for cut in range(6)
    ]
    assert optimum(case).total_s == pytest.approx(min(totals))


@pytest.mark.parametrize("number", range(6))
def test_the_cost_of_a_simulated_schedule_is_the_simulators(number: int) -> None:
    case = replace(drawn_case(number), places=1)
    rows = simulated_rows(case, RoutingPolicy.COLOCATION_QUEUEING)
    sequences: list[list[int]] = [[] for _ in range(case.pods)]
    for at in sorted(range(len(rows)), key=lambda each: rows[each]["finished_s"]):
        sequences[int(rows[at]["predict_pod"][-1])].append(at)
    simulated_s = sum(row["finished_s"] - row["scheduled_s"] for row in rows)
    assert total_of(case, sequences) == pytest.approx(simulated_s)


@pytest.mark.parametrize("number", range(6))
def test_the_simulator_takes_the_times_of_the_optimal_schedule(number: int) -> None:
    case = replace(drawn_case(number), places=1)
    found = optimum(case)
    total_s = 0.0
    for pod in range(case.pods):
        steps = [each for each in found.steps if each.pod == pod]
        planned = tuple((each.start_s, case.requests[each.request][1]) for each in steps)
        rows = simulated_rows(replace(case, requests=planned, pods=1), RoutingPolicy.COLOCATION)
        for step, row in zip(steps, rows, strict=True):
            assert row["finished_s"] == pytest.approx(step.end_s)
            total_s += row["finished_s"] - case.requests[step.request][0]
    assert total_s == pytest.approx(found.total_s)


@pytest.mark.parametrize("number", range(8))
def test_no_policy_is_better_than_the_optimum(number: int) -> None:
    found = solve(number)
    assert set(found.mean_s) >= {"auto", *FIXED} - {"remote-proxy"}
    assert min(found.mean_s.values()) >= found.optimum_s - 1e-9
    case = drawn_case(number)
    assert found.optimum_s >= fmean(case.infer_s.values())


def total_of(case: SmallCase, sequences: Sequence[Sequence[int]]) -> float:
    """Total latency if each pod serves these requests in this order.

    A load evicts the model that the pod uses again last.
    """
    total_s = 0.0
    for sequence in sequences:
        free_s, held = 0.0, set[str]()
        for place, number in enumerate(sequence):
            at_s, model = case.requests[number]
            free_s = max(free_s, at_s)
            if model not in held:
                free_s += case.load_s[model]
                if len(held) == case.places:
                    held.remove(max(held, key=lambda name: _next_use(case, sequence[place:], name)))
                held.add(model)
            free_s += case.infer_s[model]
            total_s += free_s - at_s
    return total_s


def _next_use(case: SmallCase, sequence: Sequence[int], model: str) -> float:
    return next(
        (place for place, number in enumerate(sequence) if case.requests[number][1] == model), inf
    )
