"""The exponential average of arrivals per minute with a half-life of half an hour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.baselines.measured_noise import forecast_by

if TYPE_CHECKING:
    from autoscaler.forecasting.fitting import Fit
    from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon, History

HALF_LIFE_MIN: Final = 30.0


def ewma(history: History, fit: Fit, question: ForecastHorizon) -> Forecast:
    """One average for all windows."""
    return forecast_by(_means, history, fit, question)


def _means(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    age = np.arange(history.minutes.shape[1] - 1, -1, -1.0)[:, None] - np.asarray(lags)
    decay = np.where(age >= 0, np.exp2(-np.maximum(age, 0) / HALF_LIFE_MIN), 0.0)
    decay *= 1 - 2 ** (-1 / HALF_LIFE_MIN)
    levels = history.minutes.astype(np.float32) @ decay.astype(np.float32)
    result: Floats = levels[..., None].astype(np.float64) * windows_min
    return result
