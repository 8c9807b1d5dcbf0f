"""The embedded Markov chain against a simulation of the same queue, and times of batches."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.placement.prediction import batch_times, scaled, share_factor, share_slowdown
from autoscaler.placement.problem import BatchPoint, ModelProfile
from autoscaler.placement.queueing import bulk_queue

POINT = BatchPoint(4, 0.01, 400.0, 10.0, 80.0, 40.0, 60.0)
MEASURED = replace(POINT, share_factors=((20.0, 4.0), (50.0, 1.5)))


def _simulated(
    rate_rps: float, seconds: Sequence[float], budget_s: float, requests: int, seed: int = 1
) -> tuple[float, float]:
    """In-time probability and busy part of the time."""
    rng = random.Random(seed)
    arrivals, now = deque[float](), 0.0
    for _ in range(requests):
        now += rng.expovariate(rate_rps)
        arrivals.append(now)
    end_s, in_time, busy_s = 0.0, 0, 0.0
    while arrivals:
        start_s = max(end_s, arrivals[0])
        batch: list[float] = []
        while arrivals and arrivals[0] <= start_s and len(batch) < len(seconds):
            batch.append(arrivals.popleft())
        end_s = start_s + seconds[len(batch) - 1]
        busy_s += seconds[len(batch) - 1]
        in_time += sum(end_s - arrived <= budget_s for arrived in batch)
    return in_time / requests, busy_s / end_s


def _times(first_s: float, each_s: float, largest: int) -> list[float]:
    return [first_s + each_s * size for size in range(1, largest + 1)]


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8, 0.9])
@pytest.mark.parametrize(
    ("first_s", "each_s", "largest", "budget_s"),
    [
        pytest.param(0.005, 0.001, 8, 0.03, id="batch-8"),
        pytest.param(0.02, 0.002, 16, 0.1, id="batch-16"),
        pytest.param(0.0, 0.01, 1, 0.04, id="no-batches"),
        pytest.param(0.01, 0.0005, 4, 0.02, id="short-budget"),
        pytest.param(0.03, 0.0002, 32, 0.08, id="large-batches"),
    ],
)
def test_agrees_with_a_simulation(
    first_s: float, each_s: float, largest: int, budget_s: float, load: float
) -> None:
    seconds = _times(first_s, each_s, largest)
    rate_rps = load * largest / seconds[-1]
    found = bulk_queue(rate_rps=rate_rps, seconds=seconds, budget_s=budget_s)
    in_time, busy = _simulated(rate_rps, seconds, budget_s, 20_000)
    assert found.in_time == pytest.approx(in_time, abs=0.05)
    assert found.busy == pytest.approx(busy, abs=0.02)


def test_fewer_are_in_time_as_the_rate_grows() -> None:
    seconds = _times(0.005, 0.001, 8)
    found = [
        bulk_queue(rate_rps=rate, seconds=seconds, budget_s=0.03).in_time
        for rate in (0, 100, 300, 500, 600, 615, 700, 900, 1400)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] == 1.0
    late = bulk_queue(rate_rps=1400, seconds=seconds, budget_s=0.03, late_horizon_s=8)
    assert late.in_time < 0.01 < found[-1]


def test_a_measured_share_takes_the_measured_time() -> None:
    times = batch_times("m", (MEASURED,), 4, 20.0)
    assert times.seconds_of(4) == pytest.approx(0.04)
    assert batch_times("m", (MEASURED,), 4, None).seconds_of(4) == 0.01
    assert share_slowdown(MEASURED, 100.0) == 1.0


def test_a_share_below_all_measured_ones_is_estimated_from_the_smallest() -> None:
    assert share_slowdown(MEASURED, 10.0) == pytest.approx(4.0 * 2**1.62)


def test_without_measured_shares_all_are_estimated() -> None:
    assert share_slowdown(POINT, 30.0) == share_factor(60.0, 30.0)


@given(one=st.floats(1, 100), other=st.floats(1, 100))
def test_a_larger_share_is_never_slower(one: float, other: float) -> None:
    low, high = sorted((one, other))
    for point in (POINT, MEASURED):
        assert share_slowdown(point, low) >= share_slowdown(point, high) - 1e-9
        assert share_slowdown(point, high) >= 1.0


def test_a_scaled_profile_is_slower_in_latency_and_throughput() -> None:
    [point] = scaled(ModelProfile("m", "gpu", (POINT,)), 2.0).points
    assert (point.latency_s, point.throughput_rps) == (0.02, 200.0)
