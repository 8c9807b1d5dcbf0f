"""Forecasts of arrivals: one function per arrival pattern, and `forecast_by_pattern` for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.arrival_patterns import ArrivalPattern
from autoscaler.forecasting.exponential_smoothing import smoothed_means, smoothed_sizes
from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon, History
from autoscaler.forecasting.interarrival import p_arrival_by_interarrival
from autoscaler.forecasting.log_odds import pool_log_odds
from autoscaler.forecasting.seasonal import seasonal

if TYPE_CHECKING:
    from autoscaler.forecasting.fitting import Fit

_FEW: Final = 4.0
"""Below this mean the size of the negative binomial follows from P(arrival)."""
_CHUNK: Final = 512
"""Models forecast at a time, so that memory is reused instead of new pages allocated
(`benchmarks.forecasting`: ten thousand at a time take twice as long)."""
_GAPS_SHARE: Final = 0.5
"""Weight of gaps against averages in the log-odds of P(arrival) of a sparse model."""


def sparse(history: History, fit: Fit, horizon: ForecastHorizon) -> Forecast:
    """P(arrival) by the gaps between arrivals and the averages; counts by the averages."""
    windows = horizon.windows_min
    mean = horizon.clip_means(_means(history, fit, windows))
    by_gaps = p_arrival_by_interarrival(history, fit.shared_profile, windows)
    by_mean = negative_binomial.p_at_least_one(mean, smoothed_sizes(fit.smoothing, windows))
    p_arrival = np.maximum.accumulate(pool_log_odds(by_gaps, by_mean, _GAPS_SHARE), axis=1)
    mean = np.maximum(mean, p_arrival)
    size = negative_binomial.size_of_zeros(mean, p_arrival)
    return _forecast(mean, size, horizon, p_arrival)


def steady(history: History, fit: Fit, horizon: ForecastHorizon) -> Forecast:
    """Exponential averages weighted by their past errors, with the noise of these errors."""
    windows = horizon.windows_min
    mean = _means(history, fit, windows)
    return _forecast(mean, smoothed_sizes(fit.smoothing, windows), horizon)


def periodic(history: History, fit: Fit, horizon: ForecastHorizon) -> Forecast:
    """Arrivals at the same phase of earlier cycles; `steady` for models without a whole cycle."""
    windows = horizon.windows_min
    fallback = steady(history, fit, horizon)
    cycles = seasonal(history, fit.patterns.period_min, windows)
    is_few = cycles.mean < _FEW
    mean = horizon.clip_means(np.where(is_few, cycles.mean, fallback.mean))
    by_zeros = negative_binomial.size_of_zeros(mean, cycles.p_arrival)
    size = np.where(is_few, by_zeros, smoothed_sizes(fit.smoothing, windows))
    p_arrival = np.where(is_few, cycles.p_arrival, negative_binomial.p_at_least_one(mean, size))
    seasonal_forecast = _forecast(mean, size, horizon, p_arrival)
    is_known = cycles.is_known & (fit.patterns.period_min > 0)[:, None]
    return Forecast(
        mean=np.where(is_known, seasonal_forecast.mean, fallback.mean),
        quantiles=np.where(is_known[..., None], seasonal_forecast.quantiles, fallback.quantiles),
        p_arrival=np.maximum.accumulate(
            np.where(is_known, seasonal_forecast.p_arrival, fallback.p_arrival), axis=1
        ),
    )


def forecast_by_pattern(history: History, fit: Fit, horizon: ForecastHorizon) -> Forecast:
    """Forecast each model by the method of its arrival pattern."""
    shape = (history.models, len(horizon.windows_s))
    mean, p_arrival = np.zeros(shape), np.zeros(shape)
    quantiles = np.zeros((*shape, len(horizon.probabilities)))
    for pattern, method in _BY_PATTERN.items():
        models = np.flatnonzero(fit.patterns.pattern == pattern)
        for start in range(0, models.size, _CHUNK):
            rows = models[start : start + _CHUNK]
            part = method(history.take(rows), fit.take(rows), horizon)
            mean[rows], p_arrival[rows] = part.mean, part.p_arrival
            quantiles[rows] = part.quantiles
    return Forecast(mean=mean, quantiles=quantiles, p_arrival=p_arrival)


_BY_PATTERN: Final = {
    ArrivalPattern.SPARSE: sparse,
    ArrivalPattern.PERIODIC: periodic,
    ArrivalPattern.STEADY: steady,
}


def _means(history: History, fit: Fit, windows_min: Floats) -> Floats:
    return smoothed_means(
        history, fit.profiles, fit.patterns.period_min, fit.smoothing, windows_min
    )


def _forecast(
    mean: Floats, size: Floats, horizon: ForecastHorizon, p_arrival: Floats | None = None
) -> Forecast:
    """Negative binomial counts; P(arrival) from them unless given."""
    mean = np.maximum.accumulate(horizon.clip_means(mean), axis=1)
    quantiles = negative_binomial.quantiles(mean, size, horizon.probabilities)
    if p_arrival is None:
        p_arrival = negative_binomial.p_at_least_one(mean, size)
    p_arrival = np.clip(np.maximum.accumulate(p_arrival, axis=1), 0.0, 1.0)
    is_none = (1 - p_arrival)[..., None] >= np.asarray(horizon.probabilities)
    quantiles = np.where(is_none, 0.0, np.maximum(quantiles, 1.0))
    return Forecast(mean=mean, quantiles=quantiles, p_arrival=p_arrival)
