"""As many arrivals as in the last window of the same length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autoscaler.forecasting.baselines.measured_noise import arrivals, forecast_by

if TYPE_CHECKING:
    from autoscaler.forecasting.fitting import Fit
    from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon, History


def naive(history: History, fit: Fit, question: ForecastHorizon) -> Forecast:
    """The last window again."""
    return forecast_by(_means, history, fit, question)


def _means(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    whole = np.ceil(windows_min).astype(np.int64)
    columns = [
        arrivals(history, tuple(lag + int(each) for lag in lags), np.array([each]))[..., 0]
        for each in whole
    ]
    return np.stack(columns, axis=-1)
