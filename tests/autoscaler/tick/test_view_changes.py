"""Policies on a faster clock make the same decisions as in real time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autoscaler.loading.loading_policies import policy_of
from autoscaler.planning.policy import Demote
from autoscaler.tick.view_changes import scale_times
from registry.domain.demand import QueueStats
from registry.domain.model import LoadFailure, Tier
from tests.autoscaler.pools import NOW_S, model, pod, pool

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import PoolView

SCALE = 60.0


def idle_for(idle_s: float) -> PoolView:
    """A warm model without requests for this time."""
    warm = model(at={"p": Tier.DEVICE}, last_arrival_s=NOW_S - idle_s)
    return pool([pod()], [warm])


def is_demoted(view: PoolView, minutes: float) -> bool:
    actions, _ = policy_of("keep-alive", minutes).plan(view, None)
    return [type(each) for each in actions] == [Demote]


@pytest.mark.parametrize(("idle_s", "is_gone"), [(9.5, False), (10.5, True)])
def test_a_keep_alive_of_ten_minutes_takes_ten_seconds_at_scale_60(
    idle_s: float, is_gone: bool
) -> None:
    view = idle_for(idle_s)
    assert is_demoted(scale_times(view, SCALE), 10) is is_gone
    assert not is_demoted(scale_times(view, 1), 10)
    assert is_demoted(view, 1 / 60 * 9)


def test_scales_all_times() -> None:
    failure = LoadFailure("k", "ModelLoadFailed", "no", attempts=1, retry_at_s=NOW_S + 1)
    waiting = QueueStats(requests=1, oldest_s=NOW_S - 2)
    view = scale_times(pool([pod()], [model(waiting=waiting, failure=failure)]), SCALE)
    [scaled] = view.models
    assert view.time_s - scaled.waiting.oldest_s == pytest.approx(2 * SCALE)
    assert not scaled.may_load(view.time_s + 59)
    assert scaled.may_load(view.time_s + 61)
    assert scaled.load_s[Tier.REMOTE] == 10.0 * SCALE
    assert scaled.infer_s == pytest.approx(0.1 * SCALE)
