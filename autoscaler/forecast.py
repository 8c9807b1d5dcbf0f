"""Second step of a tick: forecasts the pool's demand, for the models whose forecast is due.

A forecast changes at once with new arrivals, and slowly with the time since the last one. So a
model is due after an arrival, then whenever that time has grown by a tenth, and at the latest after
`MAX_AGE_S`, since periodic arrivals come nearer. Pure.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import numpy as np

from autoscaler.forecasting.counts import ForecastInput, ObservedDemand
from autoscaler.forecasting.forecasts import (
    REFIT_INTERVAL_S,
    Demand,
    FittedModel,
    fit_model,
    forecast_demand,
    with_announced,
)
from autoscaler.forecasting.history import (
    Booleans,
    Floats,
    Forecast,
    ForecastingError,
    History,
    Integers,
)
from autoscaler.forecasting.recency import p_next_burst
from autoscaler.policy import NEVER_S
from registry.domain.demand import ArrivalHint

MIN_REFIT_INTERVAL_S: Final = 10.0
"""Interval of refits while the history is short; later a tenth of the history's length."""
MAX_AGE_S: Final = 10.0
"""Age at which every forecast is due."""
MAX_ROWS: Final = 2_500
"""Maximum number of models per forecast; the oldest forecasts go first."""
_IDLE_SHARE: Final = 0.1
"""Part of the time since the last arrival after which a forecast is due."""
MAX_ARRIVALS: Final = 1e12
"""Forecasts of more arrivals in a window are refused as impossible."""
FORECAST_INTERVAL_S: Final = 2.0
_MIN_PAUSE_RATIO: Final = 5.0
"""Minimum pause after a forecast, as a multiple of the time that it took: forecasts then use at
most a fifth of a core."""


class ImpossibleForecast(ForecastingError):
    """A number of the forecast is negative, not finite or above `MAX_ARRIVALS`."""


class Forecaster(Protocol):
    """Source of forecasts: the live forecaster, or the simulator's recorded ones."""

    def due(
        self, models: tuple[str, ...], changed: Collection[str], now_s: float
    ) -> Integers | None:
        """The rows of `models` that the next input must hold; None: all of them."""

    def forecast(self, inputs: ForecastInput) -> Demand:
        """The demand of all models; called after `due`, with its rows. May run in any thread."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """Times of each model's forecast and last arrival, (models,), seconds on one clock."""

    forecast_s: Floats
    arrival_s: Floats
    """Minus infinity without arrivals."""


class DemandForecaster:
    """The latest forecast and its fitted model. Used by one task only."""

    def __init__(
        self,
        forecast_demand: Callable[[History, FittedModel], Demand] = forecast_demand,
        *,
        is_partial: bool = True,
    ) -> None:
        """`is_partial`: forecast only the due models; else all models, with their history."""
        self._forecast_demand = forecast_demand
        self._is_partial = is_partial
        self._model: FittedModel | None = None
        self._refit_interval_s = MIN_REFIT_INTERVAL_S
        self._base: Demand | None = None
        """The latest forecast without burst intervals."""
        self._freshness = Freshness(np.empty(0), np.empty(0))

    def due(
        self, models: tuple[str, ...], changed: Collection[str], now_s: float
    ) -> Integers | None:
        """The rows to forecast now; None: all, because a refit is due or the models changed."""
        model = self._model
        if self._base is None or model is None or not self._is_partial or model.models != models:
            return None
        if not 0 <= now_s - model.origin_s < self._refit_interval_s:
            return None
        is_changed = np.fromiter((name in changed for name in models), bool, len(models))
        rows = due_rows(self._freshness, is_changed, now_s)
        return None if rows.size == len(models) else rows

    def forecast(self, inputs: ForecastInput) -> Demand:
        """The demand of all models. After an error the next forecast is of all rows.

        Raises ImpossibleForecast.
        """
        base, self._base = self._base, None
        rows = inputs.rows
        if rows is None or base is None or self._model is None:
            base = self._forecast_all(inputs)
        elif rows.size:
            part = self._forecast_demand(inputs.history, self._model.take(rows))
            base = replace_rows(base, part, rows)
        self._update_freshness(inputs)
        if not _is_sound(base):
            raise ImpossibleForecast("the forecast has negative, infinite or absurd numbers")
        self._base = base
        p_burst = p_next_burst(inputs.seconds, window_s=60.0)
        return replace(base, p_minute=1 - (1 - base.p_minute) * (1 - p_burst))

    def _forecast_all(self, inputs: ForecastInput) -> Demand:
        tenth_s = inputs.history.known_minutes.max() * 6.0
        interval_s = float(np.clip(tenth_s, MIN_REFIT_INTERVAL_S, REFIT_INTERVAL_S))
        self._model = fit_model(inputs.history, inputs.models, self._model, interval_s=interval_s)
        self._refit_interval_s = interval_s
        return self._forecast_demand(inputs.history, self._model)

    def _update_freshness(self, inputs: ForecastInput) -> None:
        history = inputs.history
        arrival_s = np.where(history.recent > 0, history.origin_s, NEVER_S)
        arrival_s = np.maximum(arrival_s, history.origin_s - 60 * history.age_minutes)
        forecast_s = np.full(history.models, history.origin_s)
        if inputs.rows is None:
            self._freshness = Freshness(forecast_s, arrival_s)
        else:
            self._freshness.forecast_s[inputs.rows] = forecast_s
            self._freshness.arrival_s[inputs.rows] = arrival_s


def _is_sound(demand: Demand) -> bool:
    parts: tuple[Floats, ...] = (
        demand.forecast.mean,
        demand.forecast.quantiles,
        demand.forecast.p_arrival,
        demand.p_minute,
    )
    return all(bool(((each >= 0) & (each <= MAX_ARRIVALS)).all()) for each in parts)


def due_rows(
    known: Freshness, changed: Booleans, now_s: float, *, max_rows: int = MAX_ROWS
) -> Integers:
    """Indices of the models to forecast now. `changed`: had arrivals since their forecast.

    A forecast from the future was made before the clock was set back: it is due.
    """
    age_s = now_s - known.forecast_s
    max_age_s = np.minimum(_IDLE_SHARE * np.maximum(now_s - known.arrival_s, 0.0), MAX_AGE_S)
    is_due = changed | (age_s < 0) | (age_s >= max_age_s)
    rows = np.flatnonzero(is_due)
    if rows.size > max_rows:
        oldest = np.argsort(np.minimum(known.forecast_s, now_s)[rows], kind="stable")
        rows = np.sort(rows[oldest[:max_rows]])
    return rows


def replace_rows(demand: Demand, part: Demand, rows: Integers) -> Demand:
    """The demand with new rows. It has no history, since rows have different origins."""
    new, old = part.forecast, demand.forecast
    return replace(
        demand,
        history=None,
        forecast=Forecast(
            mean=_put(old.mean, new.mean, rows),
            quantiles=_put(old.quantiles, new.quantiles, rows),
            p_arrival=_put(old.p_arrival, new.p_arrival, rows),
        ),
        p_minute=_put(demand.p_minute, part.p_minute, rows),
    )


def _put(whole: Floats, part: Floats, rows: Integers) -> Floats:
    changed = whole.copy()
    changed[rows] = part
    return changed


Report = Callable[[float, Exception | None], None]
"""Called after each forecast with its duration in seconds, and its error if it failed."""


@dataclass(frozen=True, slots=True)
class _ForecastResult:
    """Result of one forecast: the demand or the error, and its duration."""

    models: tuple[str, ...]
    demand: Demand | None
    error: Exception | None
    took_s: float


def run_inline(forecast: Callable[[], _ForecastResult]) -> Future[_ForecastResult]:
    """Run the forecast in the caller's thread, for simulations."""
    done: Future[_ForecastResult] = Future()
    done.set_result(forecast())
    return done


def _raise(_: float, error: Exception | None) -> None:
    if error is not None:
        raise error


class Forecasts:
    """The latest forecast of a pool, and the one in progress. Used by one task only."""

    def __init__(
        self,
        observed: ObservedDemand,
        forecaster: Forecaster,
        *,
        interval_s: float = FORECAST_INTERVAL_S,
        submit: Callable[[Callable[[], _ForecastResult]], Future[_ForecastResult]] = run_inline,
        clock_s: Callable[[], float] = lambda: 0.0,
        report: Report = _raise,
    ) -> None:
        self._observed = observed
        self._forecaster = forecaster
        self._interval_s = self._pause_s = interval_s
        self._submit, self._clock_s, self._report = submit, clock_s, report
        self._demand: Demand | None = None
        self._models: tuple[str, ...] = ()
        self._started_s = 0.0
        self.running: Future[_ForecastResult] | None = None

    def demand(
        self, models: tuple[str, ...], now_s: float, hints: Sequence[ArrivalHint] = ()
    ) -> Demand | None:
        """The latest forecast, raised by announced arrivals; starts the next one if it is due.

        None if there is no forecast of exactly these models, or it failed.
        """
        self._take()
        if self.running is None and (inputs := self._due_input(models, now_s)) is not None:
            self.running = self._submit(partial(self._forecast, inputs))
            self._take()
        if self._demand is None or self._models != models:
            return None
        return with_announced(self._demand, models, hints, now_s)

    def _take(self) -> None:
        """Take over the result of a finished forecast."""
        if self.running is None or not self.running.done():
            return
        finished, self.running = self.running.result(), None
        self._demand, self._models = finished.demand, finished.models
        self._pause_s = max(self._interval_s, _MIN_PAUSE_RATIO * finished.took_s)
        self._report(finished.took_s, finished.error)

    def _due_input(self, models: tuple[str, ...], now_s: float) -> ForecastInput | None:
        """The input of the forecast to start now; None if none is due or a model is not counted."""
        if models == self._models and 0 <= now_s - self._started_s < self._pause_s:
            return None
        self._started_s = now_s
        observed = self._observed
        rows = self._forecaster.due(models, observed.changed, observed.counts_s(now_s))
        inputs = observed.forecast_input(now_s, models, rows)
        if inputs is None:
            self._demand, self._models = None, models
        return inputs

    def _forecast(self, inputs: ForecastInput) -> _ForecastResult:
        """May run in any thread."""
        started_s = self._clock_s()
        demand, failure = None, None
        try:
            demand = self._forecaster.forecast(inputs)
        except Exception as error:  # a failed forecast must not stop plans
            failure = error
        return _ForecastResult(inputs.models, demand, failure, self._clock_s() - started_s)
