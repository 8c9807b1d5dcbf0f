"""What requests cost a pod where they run as batches, by profiles."""

from __future__ import annotations

import pytest

from gateway.applications.batch_latency import BatchLatency, batch_latency
from registry.domain.profile import Profile, ProfilePoint

PROFILE = Profile(
    "default/m@1", "a100", tuple(ProfilePoint(*each) for each in ((1, 0.02), (4, 0.026), (8, 0.03)))
)


def _latency(requests: int, *, max_rows: int | None = None, is_idle: bool = False) -> BatchLatency:
    return batch_latency(PROFILE, requests, max_rows=max_rows, is_idle=is_idle)


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_single_request_takes_its_own_time(*, is_idle: bool) -> None:
    found = _latency(1, is_idle=is_idle)
    assert (found.setup_s, found.each_s, found.rest_s) == pytest.approx((0.0, 0.02, 0.0))


@pytest.mark.parametrize(("requests", "seconds"), [(4, 0.026), (6, 0.028), (8, 0.03)])
def test_a_busy_pod_takes_all_requests_as_a_batch(requests: int, seconds: float) -> None:
    found = _latency(requests)
    assert found.setup_s + requests * found.each_s == pytest.approx(seconds)
    assert found.setup_s + found.each_s == pytest.approx(0.02)
    assert found.rest_s == pytest.approx((requests - 1) * found.each_s)


def test_an_idle_pod_begins_with_a_batch_of_one() -> None:
    found = _latency(5, is_idle=True)
    assert found.setup_s + 5 * found.each_s == pytest.approx(0.02 + 0.026)


def test_batches_are_no_larger_than_the_annotation_or_the_profile_allows() -> None:
    assert _latency(8, max_rows=4) == _latency(4)
    assert _latency(64) == _latency(8)
    assert _latency(8, max_rows=1) == _latency(1)


def test_a_profile_whose_batches_take_longer_than_single_requests_is_not_trusted() -> None:
    slow = Profile("default/m@1", "", (ProfilePoint(1, 0.02), ProfilePoint(2, 0.1)))
    assert batch_latency(slow, 2, max_rows=2, is_idle=False).each_s == 0.02
