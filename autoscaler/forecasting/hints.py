"""Hints: announced arrivals, such as "model m gets a request within a minute with probability p".

A workflow that finishes a step can announce the next models seconds ahead (Zhang et al. 2025).
A hint is an independent source of arrivals, so it never lowers a forecast p: with it P(arrival) is
1 - (1 - p)(1 - q), where q is the hint's probability, spread evenly over the hint's time span, that
the arrival is within the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.errors import BadHorizon
from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Hint:
    """`count` arrivals of the model in row `row` within `within_s` from now, with `probability`."""

    row: int
    probability: float
    within_s: float
    count: float = 1.0

    def __post_init__(self) -> None:
        if self.row < 0:
            raise BadHorizon(f"row must be at least 0, was {self.row}")
        if not 0 <= self.probability <= 1:
            raise BadHorizon(f"probability must be in [0, 1], was {self.probability}")
        if not 0 < self.within_s < np.inf:
            raise BadHorizon(f"within_s must be positive and finite, was {self.within_s}")
        if not 1 <= self.count < np.inf:
            raise BadHorizon(f"count must be at least 1 and finite, was {self.count}")


def with_hints(forecast: Forecast, hints: Sequence[Hint], horizon: ForecastHorizon) -> Forecast:
    """The forecast with announced arrivals added; rows without hints are unchanged.

    Several hints for one model are independent of each other.
    """
    if not hints:
        return forecast
    mean, p_arrival = forecast.mean.copy(), forecast.p_arrival.copy()
    quantiles = forecast.quantiles.copy()
    p_none, announced = _combined(hints, mean.shape[0], horizon)
    rows = np.flatnonzero((p_none < 1).any(axis=1))
    max_mean = horizon.max_per_s * np.asarray(horizon.windows_s)
    mean[rows] = np.minimum(mean[rows] + announced[rows], max_mean)
    p_arrival[rows] = 1 - (1 - p_arrival[rows]) * p_none[rows]
    size = negative_binomial.size_of_zeros(mean[rows], p_arrival[rows])
    raised = negative_binomial.quantiles(mean[rows], size, horizon.probabilities)
    quantiles[rows] = np.maximum(quantiles[rows], raised)
    return Forecast(mean=mean, quantiles=quantiles, p_arrival=p_arrival)


def _combined(
    hints: Sequence[Hint], models: int, horizon: ForecastHorizon
) -> tuple[Floats, Floats]:
    """(models, windows): P(no announced arrival), and expected announced arrivals."""
    p_none = np.ones((models, len(horizon.windows_s)))
    mean = np.zeros_like(p_none)
    windows = np.asarray(horizon.windows_s)
    for hint in hints:
        if hint.row >= models:
            raise BadHorizon(
                f"row of a hint must be below {models}, the number of models, was row {hint.row}"
            )
        within = hint.probability * np.minimum(windows / hint.within_s, 1.0)
        p_none[hint.row] *= 1 - within
        mean[hint.row] += within * hint.count
    return p_none, mean
