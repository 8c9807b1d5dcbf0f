"""The expected-cost policy: loads, demotions, placement, and invalid input."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.loading_policies.holding_value import Prices
from autoscaler.loading_policies.predictive import Predictive, predictive
from autoscaler.policy import Action, ActionReason, CopyUse, Demote, Load, ModelView, PoolView
from registry.domain.demand import QueueStats
from registry.domain.model import LoadFailure, Preload, RoutingPolicy, Tier
from registry.domain.pod_state import PodState
from tests.autoscaler.views import NOW_S, demand, model, pod, pool

PRICE = 9e6
"""A model of 1,000 bytes that saves 9 s is worth it from P = 1/60 a minute."""
NO_DISK = Prices(device=PRICE, host=1e12, disk=1e12)
RULE = predictive(Predictive(prices=NO_DISK))
PODS = (pod("p"), pod("q"))
QUEUEING = {"routing": RoutingPolicy.COLOCATION_QUEUEING}
"""A policy under which the autoscaler adds copies for queued requests."""
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
    p: float, *, pods: Sequence[PodState] = PODS, arrivals: float = 0.0, **values: Any
) -> list[Action]:
    return _plan(pool(pods, [model("m", **values)], demand=demand([p], arrivals=[arrivals])))


def test_loads_an_expected_model_with_the_reason() -> None:
    [action] = _one(COMES)
    assert isinstance(action, Load)
    assert (action.pod, action.tier, action.reason) == ("p", Tier.DEVICE, ActionReason.FORECAST)
    assert "P(arrival within 60 s) 0.900" in action.detail


@pytest.mark.parametrize(
    ("p", "is_loaded"), [(0.0149, False), (0.0151, True)], ids=["below its price", "above it"]
)
def test_loads_if_worth_the_price(p: float, is_loaded: bool) -> None:
    """10 s saved x p / 60 s against 1,000 bytes x 9e6 / 3.6e12: p of 0.015."""
    assert bool(_loads(_one(p))) is is_loaded


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"policy": {"preload": Preload.OFF}}, id="preload off"),
        pytest.param({"at": {"q": Tier.DEVICE}}, id="warm elsewhere"),
        pytest.param({"loading": {"q": Tier.DISK}}, id="being loaded"),
        pytest.param({"size_bytes": 10_001}, id="it fits no pod"),
        pytest.param(
            {"failure": LoadFailure("m", "ModelLoadFailed", "no", 3, retry_at_s=NOW_S + 1)},
            id="load just failed",
        ),
        pytest.param({"load_s": {}}, id="load takes no time"),
    ],
)
def test_does_not_load(values: dict[str, Any]) -> None:
    assert _loads(_one(COMES, **values)) == []


def test_a_failing_model_does_not_block_others() -> None:
    broken = model("a", failure=LoadFailure("a", "ModelLoadFailed", "no", 3, NOW_S + 60))
    view = pool([pod("p", memory_bytes=1_000)], [broken, model("b")], demand=demand([0.9, 0.5]))
    assert _loads(_plan(view)) == [("b", "p", Tier.DEVICE)]


def test_no_loads_on_pods_that_accept_no_requests() -> None:
    assert _loads(_one(COMES, pods=[pod("p", is_accepting=False)])) == []
    assert _loads(_one(COMES, pods=[])) == []


def test_preloads_to_the_annotated_tier() -> None:
    rule = predictive(Predictive(prices=Prices(device=PRICE, host=1.0, disk=1.0)))
    at_host = model("m", policy={"preload_tier": Tier.HOST})
    view = pool([pod("p")], [at_host], demand=demand([COMES]), has_host_tier=True)
    assert _loads(_plan(view, rule)) == [("m", "p", Tier.HOST)]


def test_loads_to_disk_if_not_worth_a_device() -> None:
    rule = predictive(Predictive(prices=Prices(device=1e12, host=1e12, disk=1.0)))
    view = pool(PODS, [model("m")], demand=demand([COMES]))
    assert _loads(_plan(view, rule)) == [("m", "p", Tier.DISK)]
    there = pool(PODS, [model("m", at={"q": Tier.DISK})], demand=demand([COMES]))
    assert _loads(_plan(there, rule)) == []


def test_a_farther_tier_never_counts_as_faster() -> None:
    """An estimate of 0.25 s from object storage and a measured 10 s from disk: saves 10 s."""
    odd = {Tier.HOST: 10.0, Tier.DISK: 10.0, Tier.REMOTE: 0.25}
    assert _loads(_one(0.0151, load_s=odd)) == [("m", "p", Tier.DEVICE)]


def test_chooses_the_pod_with_the_nearest_copy() -> None:
    assert _loads(_one(COMES, at={"q": Tier.DISK})) == [("m", "q", Tier.DEVICE)]


def test_copies_follow_the_expected_load_and_spread_over_nodes() -> None:
    """840 requests of 0.1 s in a minute keep two copies busy for 70 % of the time."""
    pods = [pod("p", node="a"), pod("q", node="a"), pod("r", node="b")]
    assert _loads(_one(COMES, pods=pods, arrivals=840.0, policy={})) == [
        ("m", "p", Tier.DEVICE),
        ("m", "r", Tier.DEVICE),
    ]
    bounded = _one(COMES, pods=pods, arrivals=840.0, policy={"max_copies": 1})
    assert len(_loads(bounded)) == 1


def test_limits_concurrent_loads_per_node() -> None:
    models = [model(name) for name in "abcd"]
    view = pool([pod("p", memory_bytes=10**6)], models, demand=demand([0.9, 0.8, 0.7, 0.6]))
    assert _loads(_plan(view)) == [("a", "p", Tier.DEVICE), ("b", "p", Tier.DEVICE)]
    busy = [model("a", loading={"p": Tier.DISK}), *models[1:]]
    view = pool([pod("p", memory_bytes=10**6)], busy, demand=demand([0.9, 0.8, 0.7, 0.6]))
    assert _loads(_plan(view)) == [("b", "p", Tier.DEVICE)]
    one = predictive(Predictive(prices=NO_DISK, loads_per_node=1))
    assert _loads(_plan(view, one)) == []


def test_evicts_if_the_gain_exceeds_the_loss() -> None:
    full = [pod("p", memory_bytes=1_000, used_bytes=1_000)]
    there = model("old", at={"p": Tier.DEVICE}, last_arrival_s=NOW_S - 600)
    view = pool(full, [model("new"), there], demand=demand([0.9, 0.1]))
    demote, load = _plan(view)
    assert isinstance(demote, Demote)
    assert (demote.key, demote.pod, demote.reason) == (there.key, "p", ActionReason.ROOM)
    assert isinstance(load, Load)
    assert load.key == view.models[0].key
    assert _plan(pool(full, [model("new"), there], demand=demand([0.1, 0.9]))) == []


@pytest.mark.parametrize("p", [0.2, 0.5, 0.7])
def test_evicts_nothing_for_a_model_that_is_expected_as_much(p: float) -> None:
    full = [pod("p", memory_bytes=1_000, used_bytes=1_000)]
    there = model("old", at={"p": Tier.DEVICE}, last_arrival_s=NOW_S - 600)
    view = pool(full, [model("new"), there], demand=demand([min(1.0, 1.1 * p), p]))
    assert _plan(view) == []


@pytest.mark.parametrize(
    ("others", "is_loaded"),
    [
        pytest.param(0, True, id="nobody else needs a load"),
        pytest.param(12, False, id="others' cold starts would wait for it"),
    ],
)
def test_a_forecast_that_delays_more_than_it_saves_is_left(others: int, *, is_loaded: bool) -> None:
    """A load of 10 s; twelve other models of 0.9 arrivals a minute are cold, preloads off."""
    cold = [model(f"x{at}", policy={"preload": Preload.OFF}) for at in range(others)]
    view = pool([pod("p")], [model("m"), *cold], demand=demand([0.9] * (1 + others)))
    assert bool(_loads(_plan(view, DEFAULT))) is is_loaded
    eager = model("m", policy={"preload": Preload.EAGER})
    assert _loads(_plan(replace(view, models=(eager, *view.models[1:])), DEFAULT))


def test_a_load_to_disk_needs_a_node_without_other_loads() -> None:
    rule = predictive(Predictive(prices=Prices(device=1e12, host=1e12, disk=1.0)))
    busy = model("busy", loading={"p": Tier.DISK})
    view = pool([pod("p"), pod("q")], [model("m"), busy], demand=demand([COMES, NEVER_COMES]))
    assert _loads(_plan(view, rule)) == [("m", "q", Tier.DISK)]
    assert _loads(_plan(pool([pod("p")], view.models, demand=view.demand), rule)) == []


_FULL = [
    pod("p", memory_bytes=1_000, used_bytes=1_000),
    pod("q", memory_bytes=1_000, used_bytes=1_000),
]


def test_an_additional_copy_for_a_forecast_evicts_nothing() -> None:
    """840 requests of 0.1 s in a minute need two copies, each with a larger value than `old`."""
    busy = model("busy", at={"p": Tier.DEVICE})
    old = model("old", at={"q": Tier.DEVICE}, last_arrival_s=NOW_S - 600)
    expected = demand([0.9, 0.1], arrivals=[840.0, 0.0])
    assert _plan(pool(_FULL, [busy, old], demand=expected)) == []


@pytest.mark.parametrize(
    ("requests", "expected", "makes_room"),
    [
        pytest.param(40, 60.0, True, id="a queue of 4 s against 0.1 s a second"),
        pytest.param(19, 60.0, False, id="one copy finishes the queue in time"),
        pytest.param(40, 600.0, False, id="the other model needs its pod as much"),
    ],
)
def test_an_additional_copy_for_a_queue_evicts_less_useful_copies(
    requests: int, expected: float, *, makes_room: bool
) -> None:
    """Requests take 0.1 s, the horizon is 2 s; `old` is the only copy of its model."""
    busy = model(
        "busy", at={"p": Tier.DEVICE}, waiting=QueueStats(requests=requests), policy=QUEUEING
    )
    old = model("old", at={"q": Tier.DEVICE}, last_arrival_s=NOW_S - 1)
    counts = demand([0.9, 0.9], arrivals=[0.0, expected])
    loads = _loads(_plan(pool(_FULL, [busy, old], demand=counts)))
    assert loads == ([("busy", "q", Tier.DEVICE)] if makes_room else [])


def test_an_additional_copy_goes_to_the_less_loaded_pod() -> None:
    """q and r have room; the model on q keeps it busy."""
    pods = [pod("p", memory_bytes=1_000, used_bytes=1_000), pod("q"), pod("r", used_bytes=1)]
    busy = model("busy", at={"p": Tier.DEVICE}, waiting=QueueStats(requests=40), policy=QUEUEING)
    much = model("much", at={"q": Tier.DEVICE})
    counts = demand([0.9, 0.9], arrivals=[0.0, 400.0])
    assert _loads(_plan(pool(pods, [busy, much], demand=counts)))[0][1] == "r"


def test_free_memory_follows_from_residency() -> None:
    """A pod that has not reported its last load yet is full."""
    full = [pod("p", memory_bytes=1_000, used_bytes=0)]
    there = model("old", at={"p": Tier.DEVICE}, uses={"p": CopyUse(ongoing=1)})
    view = pool(full, [model("new"), there], demand=demand([0.9, 0.9]))
    assert _loads(_plan(view)) == []


def test_copies_of_a_model_share_its_value() -> None:
    """The third copy of one model is evicted before the only copy of another."""
    pods = [pod(name, memory_bytes=1_000, used_bytes=1_000) for name in "pqrs"]
    many = model("many", at=dict.fromkeys("pqr", Tier.DEVICE), last_arrival_s=NOW_S - 61)
    one = model("one", at={"s": Tier.DEVICE}, last_arrival_s=NOW_S - 61)
    view = pool(
        pods, [many, one, model("new")], demand=demand([0.9, 0.7, 0.95], arrivals=[1_100.0, 0, 0])
    )
    rule = predictive(Predictive(prices=NO_DISK, eviction_margin=1.5))
    assert [(each.key, each.reason) for each in _plan(view, rule) if isinstance(each, Demote)] == [
        (many.key, ActionReason.ROOM)
    ]


def test_does_not_evict_a_model_in_use() -> None:
    full = [pod("p", memory_bytes=1_000, used_bytes=1_000)]
    there = model("old", at={"p": Tier.DEVICE}, uses={"p": CopyUse(ongoing=1)})
    assert _plan(pool(full, [model("new"), there], demand=demand([0.9, 0.1]))) == []


def _demoted(p: float, **values: Any) -> list[tuple[str, Tier, ActionReason]]:
    values = {"at": {"p": Tier.DEVICE}, "last_arrival_s": NOW_S - 600, **values}
    return [
        (each.pod, each.tier, each.reason) for each in _one(p, **values) if isinstance(each, Demote)
    ]


def test_demotes_a_model_not_worth_its_memory() -> None:
    assert _demoted(NEVER_COMES) == [("p", Tier.DISK, ActionReason.IDLE)]
    assert _demoted(COMES) == []


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"policy": {"pin": True}}, id="pinned"),
        pytest.param({"policy": {"min_copies": 1}}, id="min-copies"),
        pytest.param({"policy": {"preload": Preload.EAGER}}, id="eager"),
        pytest.param({"policy": {"keep_alive_s": 601.0}}, id="within its keep-alive"),
        pytest.param({"waiting": QueueStats(requests=1)}, id="queued requests"),
        pytest.param({"uses": {"p": CopyUse(ongoing=1)}}, id="in use"),
    ],
)
def test_keeps_a_model_not_worth_its_memory(values: dict[str, Any]) -> None:
    assert _demoted(NEVER_COMES, **values) == []


def test_demotes_a_surplus_copy_after_a_while() -> None:
    two = {"p": Tier.DEVICE, "q": Tier.DEVICE}
    uses = {"p": CopyUse(last_s=NOW_S - 61), "q": CopyUse(last_s=NOW_S - 70)}
    assert _demoted(COMES, at=two, uses=uses, last_arrival_s=NOW_S - 61) == [
        ("q", Tier.DISK, ActionReason.COPIES)
    ]
    assert _demoted(COMES, at=two, last_arrival_s=NOW_S - 59) == []


def test_hysteresis_at_the_price() -> None:
    assert _demoted(0.0149) == []
    assert _demoted(0.0130) != []


DEFAULT = predictive()


@pytest.mark.parametrize("p", [0.0, NEVER_COMES, COMES])
def test_keeps_an_idle_model_while_no_other_needs_its_memory(p: float) -> None:
    idle = model("m", at={"p": Tier.DEVICE}, last_arrival_s=NOW_S - 86_400)
    assert _plan(pool(PODS, [idle, model("b")], demand=demand([p, 0.0])), DEFAULT) == []


@pytest.mark.parametrize("other_bytes", [9_000, 9_001], ids=["has room", "needs the room"])
def test_demotes_a_surplus_copy_only_where_another_model_needs_the_room(other_bytes: int) -> None:
    two = {"p": Tier.DEVICE, "q": Tier.DEVICE}
    uses = {"p": CopyUse(last_s=NOW_S - 61), "q": CopyUse(last_s=NOW_S - 70)}
    models = [model("m", at=two, uses=uses), model("other", size_bytes=other_bytes)]
    actions = _plan(pool(PODS, models, demand=demand([COMES, 0.0])), DEFAULT)
    needs_room = other_bytes > 9_000
    assert [(each.pod, each.reason) for each in actions if isinstance(each, Demote)] == (
        [("q", ActionReason.COPIES)] if needs_room else []
    )


@pytest.mark.parametrize(
    ("p", "is_loaded"), [(0.029, False), (0.031, True)], ids=["below its cost", "above it"]
)
def test_loads_ahead_into_free_memory_if_that_pays_for_the_load(p: float, is_loaded: bool) -> None:
    view = pool(PODS, [model("m")], demand=demand([p]))
    assert (("m", "p", Tier.DEVICE) in _loads(_plan(view, DEFAULT))) is is_loaded


def test_does_not_load_a_broken_model_by_forecast() -> None:
    """Its delay is over: a request may try again."""
    broken = LoadFailure("m", "ModelLoadFailed", "no", 3, retry_at_s=NOW_S - 100)
    view = pool(PODS, [model("m", failure=broken)], demand=demand([COMES], arrivals=[600.0]))
    assert _plan(view, DEFAULT) == []
    queued = replace(view.models[0], waiting=QueueStats(requests=1))
    without_gateway = predictive(Predictive(loads_for_queue=True))
    assert len(_loads(_plan(replace(view, models=(queued,)), without_gateway))) == 1


def test_loads_queued_models_whatever_the_forecast() -> None:
    [action] = _one(0.0, waiting=QueueStats(requests=1), policy=QUEUEING)
    assert isinstance(action, Load)
    assert action.reason is ActionReason.WAITING


@pytest.mark.parametrize("requests", [1, 40])
def test_under_auto_gateways_load_for_queued_requests(requests: int) -> None:
    waiting = QueueStats(requests=requests)
    assert _one(0.0, waiting=waiting) == []
    assert _one(0.0, waiting=waiting, at={"p": Tier.DEVICE}) == []
    without_gateway = predictive(Predictive(prices=NO_DISK, loads_for_queue=True))
    view = pool(PODS, [model("m", waiting=waiting)], demand=demand([0.0], arrivals=[0.0]))
    assert _loads(_plan(view, without_gateway))


@pytest.mark.parametrize(
    ("params", "policy", "makes_room"),
    [
        pytest.param(Predictive(), {}, False, id="gateways evict for queued requests"),
        pytest.param(Predictive(), {"min_copies": 1}, True, id="min-copies"),
        pytest.param(Predictive(loads_for_queue=True), {}, True, id="no gateway loads"),
    ],
)
def test_a_first_copy_for_a_queue_evicts_only_where_no_gateway_does(
    params: Predictive, policy: dict[str, Any], *, makes_room: bool
) -> None:
    full = [pod("p", memory_bytes=1_000, used_bytes=1_000)]
    old = model("old", at={"p": Tier.DEVICE}, last_arrival_s=NOW_S - 1)
    new = model("new", waiting=QueueStats(requests=3), policy=policy)
    actions = _plan(pool(full, [new, old], demand=demand([0.1, 0.9])), predictive(params))
    assert bool(_loads(actions)) is makes_room


def test_copies_for_a_queue_finish_it_in_time() -> None:
    """40 requests of 0.1 s within 2 s: two copies."""
    assert len(_loads(_one(0.0, waiting=QueueStats(requests=40), policy=QUEUEING))) == 2


def test_copies_for_a_queue_are_added_to_warm_ones() -> None:
    """One copy serves the arrivals; 20 queued requests of 0.1 s need one more for 2 s."""
    values: dict[str, Any] = {
        "at": {"p": Tier.DEVICE},
        "waiting": QueueStats(requests=20),
        "policy": QUEUEING,
    }
    assert [each[1] for each in _loads(_one(0.0, **values))] == ["q"]
    fresh = _one(0.0, since_s=NOW_S - 1, **values)
    assert _loads(fresh) == []  # its queue is being served now


def test_without_a_forecast_floors_and_queues_are_served() -> None:
    models = [
        model("a", policy={"min_copies": 1}),
        model("b", waiting=QueueStats(requests=1), policy=QUEUEING),
    ]
    loads = _loads(_plan(pool(PODS, [*models, model("c")])))
    assert sorted(name for name, _, _ in loads) == ["a", "b"]


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_invalid_forecasts_load_nothing(wrong: float) -> None:
    assert _loads(_one(wrong, arrivals=wrong)) == []


def test_an_empty_pool_plans_nothing() -> None:
    assert _plan(pool([], [])) == []


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
            if draw(st.booleans()) and used[each.name] + size <= each.budget_bytes
        }
        for place in at:
            used[place] += size
        waits = draw(st.integers(0, 3))
        models.append(model(name, at=at, size_bytes=size, waiting=QueueStats(requests=waits)))
    for each in pods:
        each.set_used_bytes({Tier.DEVICE: used[each.name]})
    p = [draw(st.floats(0, 1)) for _ in models]
    return pool(pods, models, demand=demand(p, arrivals=[100 * each for each in p]))


@given(view=_pools())
def test_no_plan_overfills_a_device_or_loads_twice(view: PoolView) -> None:
    free = {name: each.free_bytes for name, each in view.pods.items()}
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


@pytest.mark.parametrize(
    ("base_at", "expected"),
    [
        pytest.param({"q": Tier.DEVICE}, "q", id="where-its-base-is"),
        pytest.param({"p": Tier.DISK, "q": Tier.HOST}, "q", id="where-its-base-is-loaded-sooner"),
        pytest.param({}, "p", id="anywhere-without-one"),
    ],
)
def test_an_adapter_is_loaded_where_its_base_is(base_at: dict[str, Tier], expected: str) -> None:
    base, adapter = model("base", at=base_at), model("m")
    adapter = replace(adapter, spec=replace(adapter.spec, base="base"))
    found = _loads(_plan(pool(PODS, [base, adapter], demand=demand([NEVER_COMES, COMES])), RULE))
    assert ("m", expected, Tier.DEVICE) in found


def test_an_adapter_does_not_push_out_another_model_with_its_base() -> None:
    """The adapter alone would fit beside it."""
    other, base = model("other", at={"p": Tier.DEVICE}, size_bytes=8_000), model("base")
    adapter = model("m")
    adapter = replace(adapter, spec=replace(adapter.spec, base="base"))
    base = replace(base, size_bytes=3_000)
    wanted = demand([COMES, NEVER_COMES, COMES])
    view = pool([pod(used_bytes=8_000)], [other, base, adapter], demand=wanted)
    assert not _loads(_plan(view, RULE))
