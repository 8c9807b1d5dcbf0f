"""The expected-cost rule: what is loaded, what sinks, where, and what bad input does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.loading.holding_value import Prices
from autoscaler.loading.predictive import Predictive, predictive
from autoscaler.planning.actions import ActionReason, Demote, Load
from autoscaler.planning.pool_view import CopyUse
from registry.domain.demand import QueueStats
from registry.domain.model import LoadFailure, Preload, Tier
from tests.autoscaler.demands import demand
from tests.autoscaler.pools import NOW_S, model, pod, pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.planning.actions import Action
    from autoscaler.planning.pool_view import ModelView, PlannedPod, PoolView

PRICE = 9e6
"""A model of 1,000 bytes saves 9 s (disk to remote left out): worth it from P = 1/60 a minute."""
NO_DISK = Prices(device=PRICE, host=1e12, disk=1e12)
RULE = predictive(Predictive(prices=NO_DISK))
PODS = (pod("p"), pod("q"))
NEVER_COMES, COMES = 0.001, 0.9


def _plan(view: PoolView, rule: Any = RULE) -> list[Action]:
    actions, state = rule.plan(view, rule.start)
    assert state is None
    return list(actions)


def _loads(actions: Sequence[Action]) -> list[tuple[str, str, Tier]]:
    return [
        (each.key.split("/")[1].split("@")[0], each.pod, each.tier)
        for each in actions
        if isinstance(each, Load)
    ]


def _one(
    p: float, *, pods: Sequence[PlannedPod] = PODS, arrivals: float = 0.0, **values: Any
) -> list[Action]:
    return _plan(pool(pods, [model("m", **values)], demand=demand([p], arrivals=[arrivals])))


# Loading ahead


def test_a_model_that_is_expected_is_loaded_with_the_reason() -> None:
    [action] = _one(COMES)
    assert isinstance(action, Load)
    assert (action.pod, action.tier, action.reason) == ("p", Tier.DEVICE, ActionReason.FORECAST)
    assert "P(arrival within 60 s) 0.900" in action.detail


@pytest.mark.parametrize(
    ("p", "is_loaded"), [(0.0149, False), (0.0151, True)], ids=["below its price", "above it"]
)
def test_it_is_loaded_from_its_price_on(p: float, is_loaded: bool) -> None:
    """10 s saved x p / 60 s against 1,000 bytes x 9e6 / 3.6e12: p of 0.015."""
    assert bool(_loads(_one(p))) is is_loaded


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"policy": {"preload": Preload.OFF}}, id="preload off"),
        pytest.param({"at": {"q": Tier.DEVICE}}, id="it is there"),
        pytest.param({"loading": {"q": Tier.DISK}}, id="it is on its way"),
        pytest.param({"size_bytes": 10_001}, id="it fits no pod"),
        pytest.param(
            {"failure": LoadFailure("m", "ModelLoadFailed", "no", 3, retry_at_s=NOW_S + 1)},
            id="its load just failed",
        ),
        pytest.param({"load_s": {}}, id="a load takes no time"),
    ],
)
def test_it_is_not_loaded(values: dict[str, Any]) -> None:
    assert _loads(_one(COMES, **values)) == []


def test_a_failing_model_does_not_starve_others() -> None:
    broken = model("a", failure=LoadFailure("a", "ModelLoadFailed", "no", 3, NOW_S + 60))
    view = pool([pod("p", memory_bytes=1_000)], [broken, model("b")], demand=demand([0.9, 0.5]))
    assert _loads(_plan(view)) == [("b", "p", Tier.DEVICE)]


def test_pods_that_take_no_requests_get_no_loads() -> None:
    assert _loads(_one(COMES, pods=[pod("p", is_accepting=False)])) == []
    assert _loads(_one(COMES, pods=[])) == []


def test_a_preload_goes_as_near_as_its_annotation_says() -> None:
    host = {Tier.DEVICE: 10_000, Tier.HOST: 10_000}
    pods = [replace(pod("p"), budget_bytes=host)]
    rule = predictive(Predictive(prices=Prices(device=PRICE, host=1.0, disk=1.0)))
    at_host = model("m", policy={"preload_tier": Tier.HOST})
    view = pool(pods, [at_host], demand=demand([COMES]))
    assert _loads(_plan(view, rule)) == [("m", "p", Tier.HOST)]


def test_what_is_not_worth_a_device_waits_on_disk() -> None:
    rule = predictive(Predictive(prices=Prices(device=1e12, host=1e12, disk=1.0)))
    view = pool(PODS, [model("m")], demand=demand([COMES]))
    assert _loads(_plan(view, rule)) == [("m", "p", Tier.DISK)]
    there = pool(PODS, [model("m", at={"q": Tier.DISK})], demand=demand([COMES]))
    assert _loads(_plan(there, rule)) == []


def test_a_farther_tier_is_never_taken_to_be_faster() -> None:
    """A prior of 0.25 s from object storage beside a measured 10 s from disk: 10 s are saved."""
    odd = {Tier.HOST: 10.0, Tier.DISK: 10.0, Tier.REMOTE: 0.25}
    assert _loads(_one(0.0151, load_s=odd)) == [("m", "p", Tier.DEVICE)]


# Where


def test_the_pod_that_has_it_nearest_is_chosen() -> None:
    assert _loads(_one(COMES, at={"q": Tier.DISK})) == [("m", "q", Tier.DEVICE)]


def test_copies_follow_the_forecast_load_and_spread_over_nodes() -> None:
    """840 requests of 0.1 s in a minute keep two copies busy for 70 % of the time."""
    pods = [pod("p", node="a"), pod("q", node="a"), pod("r", node="b")]
    assert _loads(_one(COMES, pods=pods, arrivals=840.0, policy={})) == [
        ("m", "p", Tier.DEVICE),
        ("m", "r", Tier.DEVICE),
    ]
    bounded = _one(COMES, pods=pods, arrivals=840.0, policy={"max_copies": 1})
    assert len(_loads(bounded)) == 1


def test_few_loads_at_a_time_pass_a_node() -> None:
    models = [model(name) for name in "abcd"]
    view = pool([pod("p", memory_bytes=10**6)], models, demand=demand([0.9, 0.8, 0.7, 0.6]))
    assert _loads(_plan(view)) == [("a", "p", Tier.DEVICE), ("b", "p", Tier.DEVICE)]
    busy = [model("a", loading={"p": Tier.DISK}), *models[1:]]
    view = pool([pod("p", memory_bytes=10**6)], busy, demand=demand([0.9, 0.8, 0.7, 0.6]))
    assert _loads(_plan(view)) == [("b", "p", Tier.DEVICE)]


def test_room_is_made_where_it_harms_less_than_it_helps() -> None:
    full = [pod("p", memory_bytes=1_000, used_bytes=1_000)]
    there = model("old", at={"p": Tier.DEVICE}, last_arrival_s=NOW_S - 600)
    view = pool(full, [model("new"), there], demand=demand([0.9, 0.1]))
    demote, load = _plan(view)
    assert isinstance(demote, Demote)
    assert (demote.key, demote.pod, demote.reason) == (there.key, "p", ActionReason.ROOM)
    assert isinstance(load, Load)
    assert load.key == view.models[0].key
    assert _plan(pool(full, [model("new"), there], demand=demand([0.1, 0.9]))) == []


_FULL = [
    pod("p", memory_bytes=1_000, used_bytes=1_000),
    pod("q", memory_bytes=1_000, used_bytes=1_000),
]


def test_a_further_copy_for_a_forecast_takes_nobodys_room() -> None:
    """840 requests of 0.1 s in a minute want two copies, though each is worth more than `old`."""
    busy = model("busy", at={"p": Tier.DEVICE})
    old = model("old", at={"q": Tier.DEVICE}, last_arrival_s=NOW_S - 600)
    expected = demand([0.9, 0.1], arrivals=[840.0, 0.0])
    assert _plan(pool(_FULL, [busy, old], demand=expected)) == []


@pytest.mark.parametrize(
    ("requests", "expected", "makes_room"),
    [
        pytest.param(40, 60.0, True, id="4 s wait against 0.1 s a second"),
        pytest.param(19, 60.0, False, id="one copy ends the queue in time"),
        pytest.param(40, 600.0, False, id="the other keeps its pod as busy"),
    ],
)
def test_a_further_copy_for_what_waits_takes_what_does_less(
    requests: int, expected: float, *, makes_room: bool
) -> None:
    """Requests take 0.1 s, and work is to be done within 2 s; `old` is a last copy, in use."""
    busy = model("busy", at={"p": Tier.DEVICE}, waiting=QueueStats(requests=requests))
    old = model("old", at={"q": Tier.DEVICE}, last_arrival_s=NOW_S - 1)
    counts = demand([0.9, 0.9], arrivals=[0.0, expected])
    loads = _loads(_plan(pool(_FULL, [busy, old], demand=counts)))
    assert loads == ([("busy", "q", Tier.DEVICE)] if makes_room else [])


def test_a_further_copy_goes_where_a_pod_has_time() -> None:
    """Both q and r have room; what is on q keeps it busy."""
    pods = [pod("p", memory_bytes=1_000, used_bytes=1_000), pod("q"), pod("r", used_bytes=1)]
    busy = model("busy", at={"p": Tier.DEVICE}, waiting=QueueStats(requests=40))
    much = model("much", at={"q": Tier.DEVICE})
    counts = demand([0.9, 0.9], arrivals=[0.0, 400.0])
    assert _loads(_plan(pool(pods, [busy, much], demand=counts)))[0][1] == "r"


def test_room_is_reckoned_from_what_pods_hold() -> None:
    """A pod that has not told yet what it has just taken is full all the same."""
    full = [pod("p", memory_bytes=1_000, used_bytes=0)]
    there = model("old", at={"p": Tier.DEVICE}, uses={"p": CopyUse(ongoing=1)})
    view = pool(full, [model("new"), there], demand=demand([0.9, 0.9]))
    assert _loads(_plan(view)) == []


def test_copies_of_a_model_share_what_it_is_worth() -> None:
    """A third copy of one makes room sooner than the only copy of another, though each is liked."""
    pods = [pod(name, memory_bytes=1_000, used_bytes=1_000) for name in "pqrs"]
    many = model("many", at=dict.fromkeys("pqr", Tier.DEVICE), last_arrival_s=NOW_S - 61)
    one = model("one", at={"s": Tier.DEVICE}, last_arrival_s=NOW_S - 61)
    view = pool(
        pods, [many, one, model("new")], demand=demand([0.9, 0.5, 0.6], arrivals=[1_100.0, 0, 0])
    )
    assert [(each.key, each.reason) for each in _plan(view) if isinstance(each, Demote)] == [
        (many.key, ActionReason.ROOM)
    ]


def test_a_model_in_use_makes_no_room() -> None:
    full = [pod("p", memory_bytes=1_000, used_bytes=1_000)]
    there = model("old", at={"p": Tier.DEVICE}, uses={"p": CopyUse(ongoing=1)})
    assert _plan(pool(full, [model("new"), there], demand=demand([0.9, 0.1]))) == []


# Sinking


def _sunk(p: float, **values: Any) -> list[tuple[str, Tier, ActionReason]]:
    values = {"at": {"p": Tier.DEVICE}, "last_arrival_s": NOW_S - 600, **values}
    return [
        (each.pod, each.tier, each.reason) for each in _one(p, **values) if isinstance(each, Demote)
    ]


def test_what_is_not_worth_its_memory_sinks() -> None:
    assert _sunk(NEVER_COMES) == [("p", Tier.DISK, ActionReason.IDLE)]
    assert _sunk(COMES) == []


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"policy": {"pin": True}}, id="pinned"),
        pytest.param({"policy": {"min_copies": 1}}, id="min-copies"),
        pytest.param({"policy": {"preload": Preload.EAGER}}, id="eager"),
        pytest.param({"policy": {"keep_alive_s": 601.0}}, id="its keep-alive is not over"),
        pytest.param({"waiting": QueueStats(requests=1)}, id="requests wait"),
        pytest.param({"uses": {"p": CopyUse(ongoing=1)}}, id="in use"),
    ],
)
def test_it_stays_though_it_is_not_worth_it(values: dict[str, Any]) -> None:
    assert _sunk(NEVER_COMES, **values) == []


def test_a_copy_too_many_goes_after_a_while() -> None:
    two = {"p": Tier.DEVICE, "q": Tier.DEVICE}
    uses = {"p": CopyUse(last_s=NOW_S - 61), "q": CopyUse(last_s=NOW_S - 70)}
    assert _sunk(COMES, at=two, uses=uses, last_arrival_s=NOW_S - 61) == [
        ("q", Tier.DISK, ActionReason.COPIES)
    ]
    assert _sunk(COMES, at=two, last_arrival_s=NOW_S - 59) == []


def test_at_the_edge_of_its_price_nothing_moves() -> None:
    assert _sunk(0.0149) == []
    assert _sunk(0.0130) != []


# The floor under a wrong forecast


def test_what_waits_is_loaded_whatever_is_expected() -> None:
    [action] = _one(0.0, waiting=QueueStats(requests=1))
    assert isinstance(action, Load)
    assert action.reason is ActionReason.WAITING


def test_copies_for_what_waits_end_the_queue_in_time() -> None:
    """40 requests of 0.1 s within 2 s: two copies."""
    assert len(_loads(_one(0.0, waiting=QueueStats(requests=40)))) == 2


def test_copies_for_what_waits_come_on_top_of_those_that_let_it_wait() -> None:
    """One copy serves what goes on to come; 20 requests of 0.1 s wait: one more within 2 s."""
    waiting = QueueStats(requests=20)
    assert [each[1] for each in _loads(_one(0.0, at={"p": Tier.DEVICE}, waiting=waiting))] == ["q"]
    fresh = _one(0.0, at={"p": Tier.DEVICE}, since_s=NOW_S - 1, waiting=waiting)
    assert _loads(fresh) == []  # what waited for the load is being served now


def test_without_counts_floors_and_waiting_requests_hold() -> None:
    models = [model("a", policy={"min_copies": 1}), model("b", waiting=QueueStats(requests=1))]
    loads = _loads(_plan(pool(PODS, [*models, model("c")])))
    assert sorted(name for name, _, _ in loads) == ["a", "b"]


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_forecasts_that_are_no_numbers_load_nothing(wrong: float) -> None:
    assert _loads(_one(wrong, arrivals=wrong)) == []


def test_an_empty_pool_plans_nothing() -> None:
    assert _plan(pool([], [])) == []


# Invariants


@st.composite
def _pools(draw: st.DrawFn) -> PoolView:
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))
    pods = [
        pod(name, node=draw(st.sampled_from("xy")), memory_bytes=draw(st.integers(0, 4_000)))
        for name in draw(st.lists(st.sampled_from("pqr"), unique=True))
    ]
    models: list[ModelView] = []
    used = {each.name: 0 for each in pods}
    for name in sorted(names):
        size = draw(st.integers(1, 2_000))
        at = {
            each.name: Tier.DEVICE
            for each in pods
            if draw(st.booleans()) and used[each.name] + size <= each.free_bytes()
        }
        for place in at:
            used[place] += size
        waits = draw(st.integers(0, 3))
        models.append(model(name, at=at, size_bytes=size, waiting=QueueStats(requests=waits)))
    pods = [replace(each, used_bytes={Tier.DEVICE: used[each.name]}) for each in pods]
    p = [draw(st.floats(0, 1)) for _ in models]
    return pool(pods, models, demand=demand(p, arrivals=[100 * each for each in p]))


@given(view=_pools())
def test_no_plan_overfills_a_device_or_loads_twice(view: PoolView) -> None:
    free = {name: each.free_bytes() for name, each in view.pods.items()}
    sizes = {each.key: each.size_bytes for each in view.models}
    warm = {
        (each.key, at) for each in view.models for at, held in each.holders.items() if held.is_warm
    }
    for action in _plan(view):
        if isinstance(action, Demote):
            assert (action.key, action.pod) in warm
            warm.remove((action.key, action.pod))
            free[action.pod] += sizes[action.key]
        elif isinstance(action, Load) and action.tier is Tier.DEVICE:
            assert (action.key, action.pod) not in warm
            warm.add((action.key, action.pod))
            free[action.pod] -= sizes[action.key]
    assert all(each >= 0 for each in free.values())


@given(view=_pools())
def test_the_same_view_gives_the_same_plan(view: PoolView) -> None:
    backwards = replace(view, pods={name: view.pods[name] for name in reversed(list(view.pods))})
    assert _plan(view) == _plan(backwards)
