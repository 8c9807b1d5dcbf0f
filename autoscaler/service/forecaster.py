"""Forecasts of one pool's demand: refits when due, and forecasts only the rows that are due.

`due` returns the rows that the next `ForecastInput` must hold; `forecast` makes the demand of it.
No other method may be called in between. `forecast` may run in any thread. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.burst_intervals import p_next_burst
from autoscaler.planning.demand_forecast import REFIT_INTERVAL_S, fit_model, forecast_demand
from autoscaler.planning.forecast_refresh import Freshness, due_rows, replace_rows
from autoscaler.planning.pool_view import NEVER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from autoscaler.forecasting.history import Floats, History, Integers
    from autoscaler.planning.demand_forecast import FittedModel
    from autoscaler.planning.pool_view import Demand

MIN_REFIT_INTERVAL_S: Final = 10.0
"""Interval of refits to a history of a few minutes; later after each growth by a tenth."""

MAX_ARRIVALS: Final = 1e12
"""Sanity bound of arrivals in a window: more than `ForecastHorizon` allows in a day."""


@dataclass(frozen=True, slots=True)
class ForecastInput:
    """The counts that one forecast starts from."""

    models: tuple[str, ...]
    rows: Integers | None
    """The models of `history`, as indices of `models`; None: all of them."""
    history: History
    seconds: Integers
    """(models, seconds): counts of the last minutes of all models, the current second last."""


class DemandForecaster:
    """The latest forecast and what it was fitted with. One owner."""

    def __init__(
        self,
        forecast_demand: Callable[[History, FittedModel], Demand] = forecast_demand,
        *,
        is_partial: bool = True,
    ) -> None:
        """Without `is_partial` every forecast is of all models, and has its history."""
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
        """The demand of all models. After an error the next forecast is of all rows."""
        base, self._base = self._base, None
        rows = inputs.rows
        if rows is None or base is None or self._model is None:
            base = self._forecast_all(inputs)
        elif rows.size:
            part = self._forecast_demand(inputs.history, self._model.take(rows))
            base = replace_rows(base, part, rows)
        self._update_freshness(inputs)
        self._base = base if is_sound(base) else None
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


def is_sound(demand: Demand) -> bool:
    """True if every number is finite, not negative and below `MAX_ARRIVALS`."""
    parts: tuple[Floats, ...] = (
        demand.forecast.mean, demand.forecast.quantiles, demand.forecast.p_arrival, demand.p_minute,
    )  # fmt: skip
    return all(bool(((each >= 0) & (each <= MAX_ARRIVALS)).all()) for each in parts)
