"""Times with shares: measured where they were measured, estimated elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.placement.planners.problem import BatchPoint, ModelProfile
from autoscaler.placement.planners.service_times import (
    batch_times,
    is_share_estimated,
    scaled,
    share_factor,
    share_slowdown,
)

POINT = BatchPoint(4, 0.01, 400.0, 10.0, 80.0, 40.0, 60.0)
MEASURED = replace(POINT, share_factors=((20.0, 4.0), (50.0, 1.5)))


def test_a_measured_share_takes_the_measured_time() -> None:
    times = batch_times("m", (MEASURED,), 4, 20.0)
    assert times.seconds_of(4) == pytest.approx(0.04)
    assert not times.is_estimated
    assert batch_times("m", (MEASURED,), 4, None).seconds_of(4) == 0.01
    assert share_slowdown(MEASURED, 100.0) == 1.0


def test_a_share_below_all_measured_ones_is_estimated_from_the_smallest() -> None:
    assert is_share_estimated(MEASURED, 10.0)
    assert share_slowdown(MEASURED, 10.0) == pytest.approx(4.0 * 2**1.62)
    assert batch_times("m", (MEASURED,), 4, 10.0).is_estimated


def test_without_measured_shares_all_are_estimated() -> None:
    assert share_slowdown(POINT, 30.0) == share_factor(60.0, 30.0)
    assert is_share_estimated(POINT, 30.0)
    assert not is_share_estimated(POINT, None)


@given(one=st.floats(1, 100), other=st.floats(1, 100))
def test_a_larger_share_is_never_slower(one: float, other: float) -> None:
    low, high = sorted((one, other))
    for point in (POINT, MEASURED):
        assert share_slowdown(point, low) >= share_slowdown(point, high) - 1e-9
        assert share_slowdown(point, high) >= 1.0


def test_a_scaled_profile_is_slower_in_latency_and_throughput() -> None:
    [point] = scaled(ModelProfile("m", "gpu", (POINT,)), 2.0).points
    assert (point.latency_s, point.throughput_rps) == (0.02, 200.0)
