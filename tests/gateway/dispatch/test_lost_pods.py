"""Requests that lost pods: refused by their digest, tried again where nothing is proven."""

from __future__ import annotations

import pytest

from gateway.dispatch.lost_pods import PAUSE_S, TRIAL_S, LostPods
from gateway.errors import RequestLostPods

PATH, BODY, SIZE = b"/v1/models/m:predict", (b"{}",), 2


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_request_whose_second_attempt_loses_a_pod_too_is_refused_for_the_pause() -> None:
    clock = Clock()
    lost = LostPods(clock)
    assert lost.record(PATH, BODY, SIZE, pod="a", begun=lost.losses) is None
    lost.check(PATH, BODY, SIZE)
    assert lost.record(PATH, BODY, SIZE, pod="b", begun=lost.losses) is not None
    clock.now_s = PAUSE_S - 1
    with pytest.raises(RequestLostPods, match=r"2 pods were lost.* for 1 s"):
        lost.check(PATH, BODY, SIZE)
    clock.now_s = PAUSE_S
    lost.check(PATH, BODY, SIZE)


def lose_two_pods_at_once(lost: LostPods) -> None:
    begun = lost.losses
    assert lost.record(PATH, BODY, SIZE, pod="a", begun=begun) is None
    assert lost.record(PATH, BODY, SIZE, pod="b", begun=begun) is not None


def test_after_pods_lost_at_once_one_request_is_tried_and_its_response_acquits() -> None:
    clock = Clock()
    lost = LostPods(clock)
    lose_two_pods_at_once(lost)
    with pytest.raises(RequestLostPods):
        lost.check(PATH, BODY, SIZE)
    clock.now_s = TRIAL_S
    lost.check(PATH, BODY, SIZE)
    with pytest.raises(RequestLostPods):  # while that one runs
        lost.check(PATH, BODY, SIZE)
    lost.acquit(PATH, BODY, SIZE)
    lost.check(PATH, BODY, SIZE)


def test_a_tried_request_that_loses_its_pod_is_refused_for_the_pause() -> None:
    clock = Clock()
    lost = LostPods(clock)
    lose_two_pods_at_once(lost)
    clock.now_s = TRIAL_S
    lost.check(PATH, BODY, SIZE)
    lost.record(PATH, BODY, SIZE, pod="c", begun=lost.losses)
    clock.now_s += PAUSE_S - 1
    with pytest.raises(RequestLostPods, match="3 pods"):
        lost.check(PATH, BODY, SIZE)
