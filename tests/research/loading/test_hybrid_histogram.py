"""The policy of Serverless in the Wild: evict after a request, load before the next one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autoscaler.policy import Action, Demote, Load, PoolView
from registry.domain.model import Preload, Tier
from research.loading.hybrid_histogram import HybridHistogram, WarmWindows, hybrid_histogram
from research.loading.idle_time_histogram import IdleTimeHistogram
from tests.autoscaler.views import NOW_S, demand, history, model, pod, pool

RULE = hybrid_histogram(HybridHistogram(IdleTimeHistogram(range_min=60)))
PERIODIC = range(0, 600, 30)
"""Every half hour: a representative histogram with one bin."""


def _view(active: Sequence[int], now_min: int, **values: Any) -> PoolView:
    known = replace(demand([0.0]), history=history([active], now_min=now_min))
    last_s = NOW_S - 60 * (now_min - max(active, default=0))
    found = model("m", last_arrival_s=last_s, **values)
    return pool([pod("p")], [found], demand=known)


def _plan(view: PoolView) -> Sequence[Action]:
    return RULE.plan(view, RULE.start)[0]


def test_a_periodic_model_is_evicted_after_a_request_and_loaded_before_the_next() -> None:
    on_device = {"p": Tier.DEVICE}
    [demote] = _plan(_view(PERIODIC, 580, at=on_device))
    assert isinstance(demote, Demote)
    assert _plan(_view(PERIODIC, 580)) == ()
    [load] = _plan(_view(PERIODIC, 598))
    assert isinstance(load, Load)
    assert load.pod == "p"
    assert _plan(_view(PERIODIC, 598, at=on_device)) == ()


def test_evicts_after_the_warm_window() -> None:
    [demote] = _plan(_view(PERIODIC, 610, at={"p": Tier.DEVICE}))
    assert isinstance(demote, Demote)


def test_a_model_with_few_arrivals_is_kept_for_the_range() -> None:
    on_device = {"p": Tier.DEVICE}
    assert _plan(_view([500], 559, at=on_device)) == ()
    [demote] = _plan(_view([500], 562, at=on_device))
    assert isinstance(demote, Demote)


def test_preload_off_is_not_loaded_ahead() -> None:
    assert _plan(_view(PERIODIC, 598, policy={"preload": Preload.OFF})) == ()


def test_plans_nothing_without_counts() -> None:
    assert RULE.plan(pool([pod("p")], [model("m")]), None) == ((), None)


def test_recomputes_warm_windows_after_arrivals_only() -> None:
    _, first = RULE.plan(_view(PERIODIC, 598), None)
    _, same = RULE.plan(_view(PERIODIC, 599), first)
    assert same is first
    _, other = RULE.plan(_view([*PERIODIC, 601], 602), first)
    assert isinstance(other, WarmWindows)
    assert other.last_active.tolist() == [601]
    _, recomputed = RULE.plan(_view([*PERIODIC, 601], 602), None)
    assert isinstance(recomputed, WarmWindows)
    assert (other.low_min, other.high_min) == (recomputed.low_min, recomputed.high_min)
