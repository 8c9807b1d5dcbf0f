"""Forecasts that are wrong by a factor: a fault that policies must tolerate."""

from dataclasses import replace

from autoscaler.forecasting.history import Forecast
from autoscaler.planning.pool_view import Demand
from autoscaler.tick.forecaster import DemandForecaster
from autoscaler.tick.observed_demand import ForecastInput


class ScaledForecaster(DemandForecaster):
    """Expects `factor` times as many arrivals as the production forecasts do."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def forecast(self, inputs: ForecastInput) -> Demand:
        return scaled(super().forecast(inputs), self._factor)


def scaled(demand: Demand, factor: float) -> Demand:
    """Numbers of arrivals times the factor; probabilities are those of as many attempts."""
    forecast = demand.forecast
    return replace(
        demand,
        forecast=Forecast(
            mean=factor * forecast.mean,
            quantiles=factor * forecast.quantiles,
            p_arrival=1 - (1 - forecast.p_arrival) ** factor,
        ),
        p_minute=1 - (1 - demand.p_minute) ** factor,
    )
