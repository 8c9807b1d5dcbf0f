"""All forecast methods by name."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from autoscaler.forecasting.forecasts import Fit, forecast_by_pattern, periodic, sparse, steady
from autoscaler.forecasting.history import Forecast, ForecastHorizon, History
from research.forecasting.mean_forecasts import ewma, fft, holt_winters, naive, seasonal_naive
from research.loading.idle_time_histogram import hybrid_histogram

Method: TypeAlias = Callable[[History, Fit, ForecastHorizon], Forecast]

METHODS: Final[Mapping[str, Method]] = {
    "typed": forecast_by_pattern,
    "sparse": sparse,
    "steady": steady,
    "periodic": periodic,
    "naive": naive,
    "seasonal-naive": seasonal_naive,
    "ewma": ewma,
    "holt-winters": holt_winters,
    "hybrid-histogram": hybrid_histogram,
    "fft": fft,
}
"""`typed` is the default; the next three are its parts, applied to all models; the rest are
baselines."""
