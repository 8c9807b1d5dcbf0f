"""Hints from outside the counts: "model m comes within the next minute with probability p".

A workflow that has just finished a step knows what follows seconds ahead (Zhang et al. 2025).
A hint is one more, independent way for a request to come: it never lowers a forecast, and a
forecast without hints is the forecast. Combined: 1 - (1 - p)(1 - q), where q of a window is the
hint's probability if it comes within the window, spread evenly over the hint's own span.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.errors import BadHorizon
from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon, Integers

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Hint:
    """`count` arrivals at the model of row `row` within `within_s` from now, with `probability`."""

    row: int
    probability: float
    within_s: float
    count: float = 1.0

    def __post_init__(self) -> None:
        if self.row < 0:
            raise BadHorizon(f"row must be a model's row, was {self.row}")
        if not 0 <= self.probability <= 1:
            raise BadHorizon(f"probability must be in [0, 1], was {self.probability}")
        if not 0 < self.within_s < np.inf:
            raise BadHorizon(f"within_s must be positive and finite, was {self.within_s}")
        if not 1 <= self.count < np.inf:
            raise BadHorizon(f"count must be at least 1 and finite, was {self.count}")


@dataclass(frozen=True, slots=True)
class HintedArrivals:
    """Hints per model and window, ready to be combined."""

    p_none: Floats
    """(models, windows): probability that no hint comes true in the window."""
    mean: Floats
    """(models, windows): arrivals that hints add."""

    @property
    def rows(self) -> Integers:
        """Models that hints say anything about."""
        return np.flatnonzero((self.p_none < 1).any(axis=1))


def gather(hints: Sequence[Hint], models: int, question: ForecastHorizon) -> HintedArrivals:
    """Put hints together; several about one model are independent of each other."""
    p_none = np.ones((models, len(question.windows_s)))
    mean = np.zeros_like(p_none)
    windows = np.asarray(question.windows_s)
    for hint in hints:
        if hint.row >= models:
            raise BadHorizon(f"a hint is about row {hint.row}, but there are {models} models")
        within = hint.probability * np.minimum(windows / hint.within_s, 1.0)
        p_none[hint.row] *= 1 - within
        mean[hint.row] += within * hint.count
    return HintedArrivals(p_none=p_none, mean=mean)


def with_hints(forecast: Forecast, hints: Sequence[Hint], question: ForecastHorizon) -> Forecast:
    """The forecast, raised where hints promise arrivals; all other rows as they are."""
    if not hints:
        return forecast
    hinted = gather(hints, forecast.mean.shape[0], question)
    rows = hinted.rows
    mean, p_arrival = forecast.mean.copy(), forecast.p_arrival.copy()
    quantiles = forecast.quantiles.copy()
    most = question.most_per_s * np.asarray(question.windows_s)
    mean[rows] = np.minimum(mean[rows] + hinted.mean[rows], most)
    p_arrival[rows] = 1 - (1 - p_arrival[rows]) * hinted.p_none[rows]
    size = negative_binomial.size_of_zeros(mean[rows], p_arrival[rows])
    added = negative_binomial.quantiles(mean[rows], size, question.probabilities)
    quantiles[rows] = np.maximum(quantiles[rows], added)
    return Forecast(mean=mean, quantiles=quantiles, p_arrival=p_arrival)
