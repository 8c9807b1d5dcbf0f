"""Fits the parameters of the forecasts to arrival counts, and forecasts by arrival pattern.

`Demand` is what policies read: the forecast of all models, raised by announced arrivals. A fit
costs more than a forecast, and is due every ten minutes or so; counts suffice after a restart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, TypeVar

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon, History, Integers
from autoscaler.forecasting.patterns import ArrivalPattern, PatternAssignment, classify, seasonal
from autoscaler.forecasting.recency import (
    fit_recency,
    p_arrival_by_interarrival,
    p_minute,
    pool_log_odds,
)
from autoscaler.forecasting.smoothing import (
    SmoothingFit,
    fit_smoothing,
    own_profiles,
    shared_profile,
    smoothed_means,
    smoothed_sizes,
)
from registry.domain.demand import ArrivalHint

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


REFIT_INTERVAL_S: Final = 600.0
HORIZON: Final = ForecastHorizon()
MINUTE_S: Final = 60.0
_MAX_P: Final = 0.99
"""P(arrival within a minute) from which on arrivals are continuous."""
_SOON_S: Final = 1.0
"""Announced arrivals that are overdue are expected within this time."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Past and expected arrivals; rows are the models of the view, in their order."""

    history: History | None
    """Input of the forecast; None if rows were forecast at different times."""
    horizon: ForecastHorizon
    forecast: Forecast
    p_minute: Floats
    """(models,): P(arrival within the next minute), see `autoscaler.forecasting.recency`."""

    def take(self, rows: Integers) -> "Demand":
        return replace(
            self,
            history=None if self.history is None else self.history.take(rows),
            forecast=self.forecast.take(rows),
            p_minute=self.p_minute[rows],
        )


@dataclass(frozen=True, slots=True)
class FittedModel:
    """Parameters fitted to a history; rows are the models of that history."""

    fit: Fit
    recency: Floats
    """Weights of `fit_recency`."""
    models: tuple[str, ...]
    origin_s: float

    def take(self, rows: Integers) -> "FittedModel":
        models = tuple(self.models[row] for row in rows.tolist())
        return replace(self, fit=self.fit.take(rows), models=models)


def fit_model(
    history: History,
    models: tuple[str, ...],
    previous: FittedModel | None = None,
    *,
    interval_s: float = REFIT_INTERVAL_S,
) -> FittedModel:
    """Refit if `previous` is `interval_s` old or of other models, or if the clock was set back."""
    if previous is not None and previous.models == models:
        age_s = history.origin_s - previous.origin_s
        if 0 <= age_s < interval_s:
            return previous
    return FittedModel(fit(history), fit_recency(history), models, history.origin_s)


def forecast_demand(
    history: History, fitted: FittedModel, horizon: ForecastHorizon = HORIZON
) -> Demand:
    """The demand of the models of a history, which must be those of `fitted`."""
    forecast = forecast_by_pattern(history, fitted.fit, horizon)
    is_periodic = fitted.fit.patterns.pattern == ArrivalPattern.PERIODIC
    within_minute = p_minute(history, fitted.recency, forecast, horizon, is_periodic)
    return Demand(history, horizon, forecast, within_minute)


def arrivals_per_s(demand: Demand) -> Floats:
    """(models,): the constant rate with the forecast's P(arrival within the next minute).

    So that bursts count by when they come: their mean over time would keep a model in memory
    between them. Of models with continuous arrivals, the forecast mean.
    """
    p_minute = np.clip(np.nan_to_num(demand.p_minute, nan=0.0), 0.0, 1.0)
    hazard = -np.log1p(-np.minimum(p_minute, _MAX_P)) / MINUTE_S
    mean = mean_per_s(demand)
    return np.where(p_minute >= _MAX_P, np.maximum(hazard, mean), hazard)


def mean_per_s(demand: Demand) -> Floats:
    """(models,): mean arrivals in the first window of at least a minute."""
    column, window_s = _minute(demand)
    mean = np.nan_to_num(demand.forecast.mean[:, column], nan=0.0, posinf=0.0)
    return np.maximum(mean, 0.0) / window_s


def quantiles_per_s(demand: Demand, probability: float) -> Floats:
    """(models,): the quantile of arrivals in that window, or the next higher one forecast."""
    column, window_s = _minute(demand)
    probabilities = np.asarray(demand.horizon.probabilities)
    level = int(np.argmax(probabilities >= min(probability, probabilities[-1])))
    return demand.forecast.quantiles[:, column, level] / window_s


def _minute(demand: Demand) -> tuple[int, float]:
    """Index and length of the first window of at least a minute."""
    windows = np.asarray(demand.horizon.windows_s)
    column = int(np.argmax(windows >= min(MINUTE_S, windows[-1])))
    return column, float(windows[column])


def with_announced(
    demand: Demand, models: Sequence[str], hints: Sequence[ArrivalHint], now_s: float
) -> Demand:
    """Forecast and P(arrival within a minute) raised by hints; never lowered.

    A workflow that finishes a step announces the next models seconds ahead (Zhang et al. 2025). A
    hint is an independent source of arrivals: with it P(arrival) is 1 - (1 - p)(1 - q), where q is
    its probability, spread evenly over its time span, that the arrival is within the window.

    `models`: the demand's rows. Hints on other models count nothing.
    """
    row_of = {model: row for row, model in enumerate(models)}
    windows = np.asarray(demand.horizon.windows_s)
    p_none, announced = np.ones((len(models), windows.size)), np.zeros((len(models), windows.size))
    p_no_minute = np.ones(len(models))
    for hint in hints:
        if (row := row_of.get(str(hint.model))) is None:
            continue
        within_s = max(hint.until_s - now_s, _SOON_S)
        within = hint.probability * np.minimum(windows / within_s, 1.0)
        p_none[row] *= 1 - within
        announced[row] += within * hint.count
        p_no_minute[row] *= 1 - hint.probability * min(MINUTE_S / within_s, 1.0)
    rows = np.flatnonzero((p_none < 1).any(axis=1))
    if not rows.size:
        return demand
    forecast = _with_arrivals(demand, rows, p_none[rows], announced[rows])
    raised = 1 - (1 - demand.p_minute) * p_no_minute
    return replace(
        demand, forecast=forecast, p_minute=np.where(p_no_minute < 1, raised, demand.p_minute)
    )


def _with_arrivals(demand: Demand, rows: Integers, p_none: Floats, announced: Floats) -> Forecast:
    """The forecast with (rows, windows) P(none) and means of further arrivals."""
    horizon, old = demand.horizon, demand.forecast
    mean, p_arrival, quantiles = old.mean.copy(), old.p_arrival.copy(), old.quantiles.copy()
    mean[rows] = np.minimum(
        mean[rows] + announced, horizon.max_per_s * np.asarray(horizon.windows_s)
    )
    p_arrival[rows] = 1 - (1 - p_arrival[rows]) * p_none
    size = negative_binomial.size_of_zeros(mean[rows], p_arrival[rows])
    raised = negative_binomial.quantiles(mean[rows], size, horizon.probabilities)
    quantiles[rows] = np.maximum(quantiles[rows], raised)
    return Forecast(mean=mean, quantiles=quantiles, p_arrival=p_arrival)
