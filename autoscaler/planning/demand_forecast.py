"""From counted arrivals to what is expected: learn now and then, forecast at every plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoscaler.forecasting.arrival_patterns import ArrivalPattern
from autoscaler.forecasting.fitting import Fit, fit
from autoscaler.forecasting.forecasts import forecast_by_pattern
from autoscaler.forecasting.history import ForecastHorizon
from autoscaler.forecasting.recency import Recency, learn_recency, p_minute
from autoscaler.planning.pool_view import Demand

if TYPE_CHECKING:
    from autoscaler.forecasting.history import History, Integers

LEARN_EVERY_S: Final = 600.0
QUESTION: Final = ForecastHorizon()


@dataclass(frozen=True, slots=True)
class FittedModel:
    """What was learnt from a history; rows are the models it had."""

    fit: Fit
    recency: Recency
    models: tuple[str, ...]
    origin_s: float

    def take(self, rows: Integers) -> FittedModel:
        """Of some models only."""
        models = tuple(self.models[row] for row in rows.tolist())
        return replace(self, fit=self.fit.take(rows), models=models)


def fit_model(
    history: History,
    models: tuple[str, ...],
    previous: FittedModel | None = None,
    *,
    every_s: float = LEARN_EVERY_S,
) -> FittedModel:
    """Learn anew where the last time is `every_s` ago, models changed, or the clock went back."""
    is_same = previous is not None and previous.models == models
    if previous is not None and is_same:
        age_s = history.origin_s - previous.origin_s
        if 0 <= age_s < every_s:
            return previous
    behaviour = previous.fit.behaviour if previous is not None and is_same else None
    return FittedModel(fit(history, behaviour), learn_recency(history), models, history.origin_s)


def forecast_demand(
    history: History, learnt: FittedModel, question: ForecastHorizon = QUESTION
) -> Demand:
    """The demand of the models of a history, which must be those of `learnt`."""
    forecast = forecast_by_pattern(history, learnt.fit, question)
    is_periodic = learnt.fit.behaviour.kind == ArrivalPattern.PERIODIC
    soon = p_minute(history, learnt.recency, forecast, question, is_periodic)
    return Demand(history, question, forecast, soon)
