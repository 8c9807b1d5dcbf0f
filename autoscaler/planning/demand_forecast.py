"""From arrival counts to a pool's demand: fit rarely, forecast at every plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoscaler.forecasting.arrival_patterns import ArrivalPattern
from autoscaler.forecasting.fitting import Fit, fit
from autoscaler.forecasting.forecasts import forecast_by_pattern
from autoscaler.forecasting.history import ForecastHorizon
from autoscaler.forecasting.recency import RecencyModel, fit_recency, p_minute
from autoscaler.planning.pool_view import Demand

if TYPE_CHECKING:
    from autoscaler.forecasting.history import History, Integers

REFIT_INTERVAL_S: Final = 600.0
HORIZON: Final = ForecastHorizon()


@dataclass(frozen=True, slots=True)
class FittedModel:
    """Parameters fitted to a history; rows are the models of that history."""

    fit: Fit
    recency: RecencyModel
    models: tuple[str, ...]
    origin_s: float

    def take(self, rows: Integers) -> FittedModel:
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
