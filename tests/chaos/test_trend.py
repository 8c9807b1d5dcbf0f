"""Trends of series of which the slope is known."""

from __future__ import annotations

import random

from tests.chaos.trend import HOUR_S, trend

TIMES_S = [float(each) for each in range(0, 600, 5)]


def noise(seed: int) -> random.Random:
    return random.Random(seed)


def test_a_growing_series_grows() -> None:
    rng = noise(1)
    found = trend(TIMES_S, [100 + each / HOUR_S * 60 + rng.gauss(0, 1) for each in TIMES_S])
    assert found.low < 60 < found.high
    assert found.grows(0.05, 1.0)


def test_a_flat_series_with_noise_does_not() -> None:
    rng = noise(3)
    found = trend(TIMES_S, [100 + rng.gauss(0, 5) for _ in TIMES_S])
    assert found.low < 0 < found.high
    assert not found.grows(0.05, 1.0)


def test_slow_waves_are_not_mistaken_for_growth() -> None:
    values = [100.0 + (each % 200 > 100) * 20 for each in TIMES_S]
    assert not trend(TIMES_S, values).grows(0.05, 1.0)
