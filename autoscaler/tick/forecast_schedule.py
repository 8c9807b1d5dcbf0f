"""When to forecast, and the latest forecast. Pure: time is an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import Demand
    from autoscaler.tick.forecaster import Forecaster, ForecastInput
    from autoscaler.tick.observed_demand import ObservedDemand

FORECAST_INTERVAL_S: Final = 2.0
_MIN_PAUSE_RATIO: Final = 5.0
"""Minimum pause after a forecast, as a multiple of the time that it took: forecasts then use at
most a fifth of a core."""


class ForecastSchedule:
    """The latest forecast of a pool. Used by one task only."""

    def __init__(
        self,
        observed: ObservedDemand,
        forecaster: Forecaster,
        *,
        interval_s: float = FORECAST_INTERVAL_S,
    ) -> None:
        self._observed = observed
        self.forecaster = forecaster
        self._interval_s = self._pause_s = interval_s
        self._demand: Demand | None = None
        self._models: tuple[str, ...] = ()
        self._started_s = 0.0

    def demand(self, models: tuple[str, ...]) -> Demand | None:
        """The latest forecast; None if it was not made for exactly these models."""
        return self._demand if self._models == models else None

    def update(self, models: tuple[str, ...], now_s: float) -> None:
        """Forecast in this call if one is due; `BackgroundForecast` uses a thread instead."""
        inputs = self.next_input(models, now_s)
        if inputs is not None:
            self.take(models, self.forecaster.forecast(inputs), took_s=0.0)

    def next_input(self, models: tuple[str, ...], now_s: float) -> ForecastInput | None:
        """The input of the forecast to start now; None if none is due or a model is not counted."""
        if models == self._models and 0 <= now_s - self._started_s < self._pause_s:
            return None
        self._started_s = now_s
        observed = self._observed
        rows = self.forecaster.due(models, observed.changed, observed.counts_s(now_s))
        inputs = observed.forecast_input(now_s, models, rows)
        if inputs is None:
            self._demand, self._models = None, models
        return inputs

    def take(self, models: tuple[str, ...], demand: Demand | None, *, took_s: float) -> None:
        """Keep a finished forecast; `demand` is None if it failed."""
        self._demand, self._models = demand, models
        self._pause_s = max(self._interval_s, _MIN_PAUSE_RATIO * took_s)
