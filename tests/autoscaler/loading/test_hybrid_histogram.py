"""Serverless in the Wild's policy: away after a request, and back before the next one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autoscaler.forecasting.baselines.hybrid_histogram import IdleTimeHistogram
from autoscaler.loading.hybrid_histogram import HybridHistogram, WarmWindows, hybrid_histogram
from autoscaler.planning.actions import Action, Demote, Load
from registry.domain.model import Preload, Tier
from tests.autoscaler.demands import demand, history
from tests.autoscaler.pools import NOW_S, model, pod, pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.planning.pool_view import PoolView

RULE = hybrid_histogram(HybridHistogram(IdleTimeHistogram(range_min=60)))
TIMER = range(0, 600, 30)
"""Every half hour: the histogram has one bin, and says much."""


def _view(active: Sequence[int], now_min: int, **values: Any) -> PoolView:
    known = replace(demand([0.0]), history=history([active], now_min=now_min))
    last_s = NOW_S - 60 * (now_min - max(active, default=0))
    found = model("m", last_arrival_s=last_s, **values)
    return pool([pod("p")], [found], demand=known)


def _plan(view: PoolView) -> Sequence[Action]:
    return RULE.plan(view, RULE.start)[0]


def test_a_timer_is_away_between_its_beats_and_back_before_them() -> None:
    there = {"p": Tier.DEVICE}
    [gone] = _plan(_view(TIMER, 580, at=there))
    assert isinstance(gone, Demote)
    assert _plan(_view(TIMER, 580)) == ()
    [back] = _plan(_view(TIMER, 598))
    assert isinstance(back, Load)
    assert back.pod == "p"
    assert _plan(_view(TIMER, 598, at=there)) == ()


def test_after_the_longest_usual_idle_time_it_goes() -> None:
    [gone] = _plan(_view(TIMER, 610, at={"p": Tier.DEVICE}))
    assert isinstance(gone, Demote)


def test_a_model_that_says_little_stays_for_the_range() -> None:
    there = {"p": Tier.DEVICE}
    assert _plan(_view([500], 559, at=there)) == ()
    [gone] = _plan(_view([500], 562, at=there))
    assert isinstance(gone, Demote)


def test_preload_off_is_never_loaded_ahead() -> None:
    assert _plan(_view(TIMER, 598, policy={"preload": Preload.OFF})) == ()


def test_nothing_happens_before_anything_was_counted() -> None:
    assert RULE.plan(pool([pod("p")], [model("m")]), None) == ((), None)


def test_spans_are_worked_out_anew_after_arrivals_only() -> None:
    _, first = RULE.plan(_view(TIMER, 598), None)
    _, same = RULE.plan(_view(TIMER, 599), first)
    assert same is first
    _, other = RULE.plan(_view([*TIMER, 601], 602), first)
    assert isinstance(other, WarmWindows)
    assert other.last_active.tolist() == [601]
    _, afresh = RULE.plan(_view([*TIMER, 601], 602), None)
    assert isinstance(afresh, WarmWindows)
    assert (other.low_min, other.high_min) == (afresh.low_min, afresh.high_min)
