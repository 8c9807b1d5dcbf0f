"""As many arrivals as in the same window of the day before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoscaler.forecasting.baselines.measured_noise import arrivals, forecast_by
from autoscaler.forecasting.history import (
    MINUTES_OF_DAY,
    Floats,
    Forecast,
    ForecastHorizon,
    History,
)

if TYPE_CHECKING:
    from autoscaler.forecasting.fitting import Fit


def seasonal_naive(history: History, fit: Fit, question: ForecastHorizon) -> Forecast:
    """The same window of yesterday."""
    return forecast_by(_means, history, fit, question)


def _means(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    return arrivals(history, tuple(lag + MINUTES_OF_DAY for lag in lags), windows_min)
