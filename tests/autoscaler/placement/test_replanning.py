"""When a plan is made anew, adopted, and how copies move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.placement.placed_pods import (
    latency_scales,
    moves,
    planned_for,
    should_adopt,
    should_replan,
)
from autoscaler.placement.placement_input import PlacementInput
from autoscaler.placement.plan import Placement
from autoscaler.placement.problem import Profiles, Workload
from registry.domain.records import PlacedReplica
from research.placement.fleet import accelerators_of
from tests.autoscaler.placement.cases import KIND

_GPUS = accelerators_of(KIND, 2)
_LOADS = [Workload("large", 100, 0.2), Workload("small", 300, 0.1)]


def _inputs(loads: list[Workload], gpus: int) -> PlacementInput:
    return PlacementInput(tuple(loads), tuple(accelerators_of(KIND, gpus)), Profiles(()))


def _reasons(*observed: tuple[float, list[Workload], int, dict[str, float]]) -> list[str]:
    state, reasons = planned_for(_inputs(_LOADS, 2)), []
    for now_s, loads, gpus, ratios in observed:
        state, reason = should_replan(state, _inputs(loads, gpus), ratios, now_s)
        reasons.append(reason)
    return reasons


def test_constant_rates_keep_the_plan() -> None:
    assert _reasons(*((now, _LOADS, 2, {}) for now in (0.0, 10.0, 20.0))) == ["", "", ""]


def test_a_forecast_off_twice_running_replans() -> None:
    off = [Workload("large", 121, 0.2), _LOADS[1]]
    once = _reasons((0, off, 2, {}), (10, _LOADS, 2, {}), (20, off, 2, {}))
    assert once == ["", "", ""]
    twice = _reasons((0, off, 2, {}), (10, off, 2, {}))
    assert twice[0] == ""
    assert "20% off the planned rate of large" in twice[1]


@pytest.mark.parametrize(
    ("loads", "gpus", "expected"),
    [
        (_LOADS, 3, "accelerators came or went: v100-2"),
        (_LOADS[:1], 2, "models came or went: small"),
        ([_LOADS[0], Workload("small", 300, 0.05)], 2, "the SLO changed of small"),
    ],
)
def test_changes_replan_at_once(loads: list[Workload], gpus: int, expected: str) -> None:
    assert _reasons((0, loads, gpus, {})) == [expected]


def test_a_minute_of_latency_above_the_prediction_replans() -> None:
    slow, normal = {"small": 1.3}, {"small": 1.2}
    found = _reasons(
        (0, _LOADS, 2, slow),
        (50, _LOADS, 2, slow),
        (55, _LOADS, 2, normal),
        (60, _LOADS, 2, slow),
        (119, _LOADS, 2, slow),
        (120, _LOADS, 2, slow),
    )
    assert [bool(each) for each in found] == [False] * 5 + [True]


def test_a_minute_above_the_prediction_is_one_models() -> None:
    found = _reasons(
        (0, _LOADS, 2, {"small": 1.3}),
        (40, _LOADS, 2, {"large": 1.3}),
        (80, _LOADS, 2, {"large": 1.5, "small": 1.3}),
        (100, _LOADS, 2, {"large": 1.6, "small": 2}),
    )
    assert found[:3] == [""] * 3
    assert found[3] == "latency exceeds the prediction for 60 s: large (1.60 times)"


def test_profiles_are_scaled_by_what_is_slower_until_it_is_faster_again() -> None:
    first = latency_scales({}, {"a": 1.5, "b": 1.2, "c": 0.5})
    assert first == {"a": 1.5}
    assert latency_scales(first, {"a": 1.1}) == first  # near the prediction that has the factor
    assert latency_scales(first, {}) == first
    assert latency_scales(first, {"a": 0.8, "b": 2.0}) == pytest.approx({"a": 1.2, "b": 2.0})
    assert latency_scales(first, {"a": 0.5}) == {}


@given(scale=st.floats(1, 10), ratio=st.floats(0.01, 100), slower=st.floats(0.01, 100))
def test_scales_are_at_least_one_and_monotone(scale: float, ratio: float, slower: float) -> None:
    low, high = sorted((ratio, slower))
    scales = {"a": scale} if scale > 1 else {}
    found = [latency_scales(scales, {"a": each}).get("a", 1.0) for each in (low, high)]
    assert 1 <= found[0] <= found[1]


def test_a_plan_is_adopted_if_it_gains_more_than_its_moves_cost() -> None:
    assert should_adopt(1.0, 299.0)
    assert not should_adopt(1.0, 301.0)


def test_the_new_copy_is_warm_first(synthetic: Profiles) -> None:
    current = [PlacedReplica("large", "v100-0", 4), PlacedReplica("small", "v100-1", 4)]
    wanted = (
        PlacedReplica("large", "v100-0", 8),
        PlacedReplica("medium", "v100-0", 4),
        PlacedReplica("small", "v100-1", 4),
    )
    plan = Placement("test", wanted, (), 0.0)
    first, *_ = moves(current, plan.replicas, _GPUS, synthetic, {})["v100-0"]
    assert (first.starts, first.stops) == (wanted[0], current[0])
    assert not any(moves(wanted, plan.replicas, _GPUS, synthetic, {}).values())


def test_where_there_is_no_room_the_cheapest_leaves_first(synthetic: Profiles) -> None:
    current = [
        PlacedReplica("wide", "v100-0", 8),
        PlacedReplica("large", "v100-0", 16),
        PlacedReplica("small", "v100-0", 4),
    ]
    plan = Placement("test", (PlacedReplica("wide", "v100-0", 16),), (), 0.0)
    costs = {"wide": 5.0, "large": 1.0, "small": 2.0}
    stopped = [
        each.stops.model
        for each in moves(current, plan.replicas, _GPUS, synthetic, costs)["v100-0"]
        if each.stops
    ]
    assert stopped[0] == "large"
    assert stopped.index("small") < stopped.index("wide")
