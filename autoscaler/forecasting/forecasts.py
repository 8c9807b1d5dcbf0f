"""Fits the parameters of the forecasts to arrival counts, and forecasts by arrival pattern.

`fit` costs more than a forecast and is due every ten minutes or so. Everything can be refitted from
the counts after a restart.
"""

from dataclasses import dataclass, fields, replace
from typing import Final, TypeVar

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon, History, Integers
from autoscaler.forecasting.patterns import ArrivalPattern, PatternAssignment, classify, seasonal
from autoscaler.forecasting.recency import p_arrival_by_interarrival, pool_log_odds
from autoscaler.forecasting.smoothing import (
    SmoothingFit,
    fit_smoothing,
    own_profiles,
    shared_profile,
    smoothed_means,
    smoothed_sizes,
)

_Parameters = TypeVar("_Parameters", PatternAssignment, SmoothingFit)
_FEW: Final = 4.0
"""Below this mean the size of the negative binomial follows from P(arrival)."""
_CHUNK: Final = 512
"""Models forecast at a time, so that memory is reused instead of new pages allocated
(`benchmarks.forecasting`: ten thousand at a time take twice as long)."""
_GAPS_SHARE: Final = 0.5
"""Weight of gaps against averages in the log-odds of P(arrival) of a sparse model."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters per model (rows as in the history), and parameters that all models share."""

    shared_profile: Floats
    """(144,): relative load of each ten minutes of the day, mean 1."""
    patterns: PatternAssignment
    profiles: Floats
    """(models, 144): as `shared_profile`, of each model."""
    smoothing: SmoothingFit

    def take(self, rows: Integers) -> "Fit":
        """The parameters of the models at `rows`."""
        return replace(
            self,
            patterns=_take(self.patterns, rows),
            profiles=self.profiles[rows],
            smoothing=_take(self.smoothing, rows),
        )


def fit(history: History) -> Fit:
    shared = shared_profile(history)
    profiles = own_profiles(history, shared)
    patterns = classify(history)
    smoothing = fit_smoothing(history, profiles, patterns.period_min)
    return Fit(shared, patterns, profiles, smoothing)


def _take(parameters: _Parameters, rows: Integers) -> _Parameters:
    columns = (getattr(parameters, field.name) for field in fields(parameters))
    return type(parameters)(*(column[rows] for column in columns))


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
