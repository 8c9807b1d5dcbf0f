"""Turns a forecast of means into one with quantiles: adds the noise of its own past errors.

With the same negative binomial as `forecasts`, so that the back-test compares means, not a forecast
with noise and one without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon, History

if TYPE_CHECKING:
    from autoscaler.forecasting.fitting import Fit

Means: TypeAlias = Callable[[History, tuple[int, ...], Floats], Floats]
"""(history, lags, windows, both in minutes) to (models, lags, windows): means forecast as of `lag`
minutes before the origin; a lag of 0 is now."""

LAGS_MIN: Final = (60, 120, 180, 360, 540, 720, 1080, 1380)


def with_measured_noise(means: Means) -> Callable[[History, Fit, ForecastHorizon], Forecast]:
    """The forecast method with these means."""

    def forecast(history: History, _fit: Fit, horizon: ForecastHorizon) -> Forecast:
        windows = np.maximum(horizon.windows_min, 1.0)
        found = np.clip(means(history, (0, *LAGS_MIN), windows), 0.0, None)
        past, observed = found[:, 1:], arrivals(history, LAGS_MIN, np.minimum(windows, LAGS_MIN[0]))
        weight, total = (past**2).sum(axis=1), past.sum(axis=1)
        squared = ((observed - past) ** 2).sum(axis=1)
        size = negative_binomial.size_of_moments(total, squared, np.maximum(weight, 1e-6))
        mean = found[:, 0] * (horizon.windows_min / windows)
        mean = np.clip(mean, 1e-9, horizon.max_per_s * np.asarray(horizon.windows_s))
        return Forecast(
            mean=mean,
            quantiles=negative_binomial.quantiles(mean, size, horizon.probabilities),
            p_arrival=negative_binomial.p_at_least_one(mean, size),
        )

    return forecast


def arrivals(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    """(models, lags, windows): arrivals in windows that began `lag` minutes before the last end.

    Before the first count and after the origin there are none.
    """
    bins = history.minutes.shape[1]
    total = np.pad(np.cumsum(history.minutes, axis=1, dtype=np.float64), ((0, 0), (1, 0)))
    starts = bins - np.asarray(lags)[:, None]
    ends = starts + np.ceil(windows_min).astype(np.int64)
    result: Floats = total[:, np.clip(ends, 0, bins)] - total[:, np.clip(starts, 0, bins)]
    return result
