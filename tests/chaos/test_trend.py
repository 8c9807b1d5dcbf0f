"""Trends of series of which the slope is known."""

from __future__ import annotations

import random

from tests.chaos.trend import HOUR_S, trend, without

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


def test_what_another_series_explains_is_no_growth() -> None:
    rng = noise(5)
    cause = [200 * (1 - 2.0 ** (-each / 150)) for each in TIMES_S]
    values = [7_000 + 8 * each + rng.gauss(0, 5) for each in cause]
    assert trend(TIMES_S, values).grows(0.05, 1.0)
    assert not trend(without(TIMES_S, cause), without(values, cause)).grows(0.0, 60.0)


def test_growth_beside_what_another_series_explains_is_seen() -> None:
    rng = noise(5)
    cause = [200 * (1 - 2.0 ** (-each / 150)) for each in TIMES_S]
    values = [
        7_000 + 8 * each + time_s / HOUR_S * 600 + rng.gauss(0, 5)
        for each, time_s in zip(cause, TIMES_S, strict=True)
    ]
    found = trend(without(TIMES_S, cause), without(values, cause))
    assert found.grows(0.0, 300.0)
