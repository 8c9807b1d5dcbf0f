"""Patterns of clear streams."""

import numpy as np
import pytest

from autoscaler.forecasting.history import Integers
from autoscaler.forecasting.patterns import ArrivalPattern, classify
from tests.autoscaler.forecasting import streams

MINUTES = 3 * streams.DAY


def _bursts(models: int) -> Integers:
    rng = np.random.default_rng(2)
    is_on = np.repeat(rng.random((models, MINUTES // 20)) < 0.3, 20, axis=1)
    return rng.poisson(np.where(is_on, 8.0, 0.2)).astype(np.uint32)


def _jittered(models: int) -> Integers:
    rng = np.random.default_rng(4)
    counts = np.zeros((models, MINUTES), dtype=np.uint32)
    for row in range(models):
        at = np.arange(30, MINUTES - 5, 45)
        counts[row, at + rng.integers(-1, 2, at.size)] = 3
    return counts


@pytest.mark.parametrize(
    ("counts", "kind"),
    [
        pytest.param(
            streams.hourly(models=8, minutes=MINUTES), ArrivalPattern.PERIODIC, id="hourly"
        ),
        pytest.param(_jittered(8), ArrivalPattern.PERIODIC, id="every-45-minutes-or-so"),
        pytest.param(
            streams.poisson(0.01, models=8, minutes=MINUTES), ArrivalPattern.SPARSE, id="rare"
        ),
        pytest.param(
            streams.poisson(3.0, models=8, minutes=MINUTES), ArrivalPattern.STEADY, id="poisson"
        ),
        pytest.param(_bursts(8), ArrivalPattern.STEADY, id="on-and-off"),
        pytest.param(
            np.zeros((8, 8 * streams.DAY), dtype=np.uint32), ArrivalPattern.SPARSE, id="new"
        ),
    ],
)
def test_assigns_the_pattern_of_clear_streams(counts: Integers, kind: ArrivalPattern) -> None:
    history = streams.of(counts)
    assert (classify(history).pattern == kind).mean() >= 7 / 8


def test_finds_the_period() -> None:
    hourly = classify(streams.of(streams.hourly(models=4, minutes=MINUTES)))
    assert hourly.period_min == pytest.approx(60, abs=0.5)
    assert classify(streams.of(_jittered(4))).period_min == pytest.approx(45, abs=1)


def test_finds_periods_of_a_day_by_the_gaps() -> None:
    counts = np.zeros((2, 12 * streams.DAY), dtype=np.uint32)
    counts[0, : 2 * streams.DAY : 30] = 1  # silent for ten days
    counts[1, :: streams.DAY] = 1
    found = classify(streams.of(counts))
    assert found.pattern.tolist() == [ArrivalPattern.SPARSE, ArrivalPattern.PERIODIC]
    assert found.period_min[1] == streams.DAY
