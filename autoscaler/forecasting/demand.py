"""A pool's demand: fitted rarely, forecast at every plan, raised by announced arrivals. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.forecasts import Fit, fit, forecast_by_pattern
from autoscaler.forecasting.history import Floats, Forecast, ForecastHorizon, History, Integers
from autoscaler.forecasting.patterns import ArrivalPattern
from autoscaler.forecasting.recency import RecencyModel, fit_recency, p_minute
from registry.domain.demand import ArrivalHint

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
        """The demand of the models at `rows`."""
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
    recency: RecencyModel
    models: tuple[str, ...]
    origin_s: float

    def take(self, rows: Integers) -> "FittedModel":
        """The parameters of the models at `rows`."""
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
    result: Floats = np.where(p_minute >= _MAX_P, np.maximum(hazard, mean), hazard)
    return result


def mean_per_s(demand: Demand) -> Floats:
    """(models,): mean arrivals in the first window of at least a minute."""
    column, window_s = _minute(demand)
    mean = np.nan_to_num(demand.forecast.mean[:, column], nan=0.0, posinf=0.0)
    result: Floats = np.maximum(mean, 0.0) / window_s
    return result


def quantiles_per_s(demand: Demand, probability: float) -> Floats:
    """(models,): the quantile of arrivals in that window, or the next higher one forecast."""
    column, window_s = _minute(demand)
    probabilities = np.asarray(demand.horizon.probabilities)
    level = int(np.argmax(probabilities >= min(probability, probabilities[-1])))
    result: Floats = demand.forecast.quantiles[:, column, level] / window_s
    return result


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
