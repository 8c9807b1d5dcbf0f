"""Policies on a faster clock decide as they would at the trace's own pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autoscaler.loading.loading_policies import policy_of
from autoscaler.planning.actions import Demote
from autoscaler.planning.time_scale import scale_times
from registry.domain.demand import QueueStats
from registry.domain.model import LoadFailure, Tier
from tests.autoscaler.pools import NOW_S, model, pod, pool

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import PoolView

PACE = 60.0


def idle_for(idle_s: float) -> PoolView:
    """A warm model that nobody has asked for since."""
    warm = model(at={"p": Tier.DEVICE}, last_arrival_s=NOW_S - idle_s)
    return pool([pod()], [warm])


def is_dropped(view: PoolView, minutes: float) -> bool:
    actions, _ = policy_of("keep-alive", minutes).plan(view, None)
    return [type(each) for each in actions] == [Demote]


@pytest.mark.parametrize(("idle_s", "goes"), [(9.5, False), (10.5, True)])
def test_a_keep_alive_of_ten_minutes_is_ten_seconds_at_pace_60(idle_s: float, goes: bool) -> None:
    view = idle_for(idle_s)
    assert is_dropped(scale_times(view, PACE), 10) is goes
    assert not is_dropped(scale_times(view, 1), 10)
    assert is_dropped(view, 1 / 60 * 9)


def test_everything_that_is_a_time_is_longer() -> None:
    failure = LoadFailure("k", "ModelLoadFailed", "no", attempts=1, retry_at_s=NOW_S + 1)
    waiting = QueueStats(requests=1, oldest_s=NOW_S - 2)
    view = scale_times(pool([pod()], [model(waiting=waiting, failure=failure)]), PACE)
    [seen] = view.models
    assert view.time_s - seen.waiting.oldest_s == pytest.approx(2 * PACE)
    assert not seen.may_load(view.time_s + 59)
    assert seen.may_load(view.time_s + 61)
    assert seen.load_s[Tier.REMOTE] == 10.0 * PACE
    assert seen.infer_s == pytest.approx(0.1 * PACE)
