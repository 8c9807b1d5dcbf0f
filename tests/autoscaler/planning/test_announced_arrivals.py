"""Announced arrivals raise the demand of their models, and of no others."""

from __future__ import annotations

import numpy as np

from autoscaler.forecasting.history import Forecast, ForecastHorizon
from autoscaler.planning.announced_arrivals import with_announced
from autoscaler.planning.pool_view import Demand
from registry.domain.demand import ArrivalHint
from registry.domain.model import ModelName

MODELS = ["default/a", "default/b"]
HORIZON = ForecastHorizon((60.0,), (0.5,))
DEMAND = Demand(
    None, HORIZON,
    Forecast(mean=np.full((2, 1), 0.1), quantiles=np.zeros((2, 1, 1)),
             p_arrival=np.full((2, 1), 0.1)),
    np.full(2, 0.1),
)  # fmt: skip


def hint(name: str, probability: float, until_s: float) -> ArrivalHint:
    return ArrivalHint(ModelName("default", name), probability, until_s)


def test_a_model_whose_step_is_planned_is_expected_within_the_minute() -> None:
    found = with_announced(DEMAND, MODELS, [hint("b", 0.9, 105.0)], now_s=100.0)
    assert found.p_minute[0] == 0.1
    assert np.isclose(found.p_minute[1], 1 - 0.9 * 0.1)
    assert np.isclose(found.forecast.p_arrival[1, 0], 1 - 0.9 * 0.1)
    assert np.isclose(found.forecast.mean[1, 0], 1.0)


def test_arrivals_after_the_minute_count_in_part() -> None:
    found = with_announced(DEMAND, MODELS, [hint("a", 1.0, 220.0)], now_s=100.0)
    assert np.isclose(found.p_minute[0], 1 - 0.9 * 0.5)


def test_overdue_arrivals_are_expected_now() -> None:
    found = with_announced(DEMAND, MODELS, [hint("a", 1.0, 90.0)], now_s=100.0)
    assert found.p_minute[0] == 1.0


def test_hints_on_unknown_models_change_nothing() -> None:
    assert with_announced(DEMAND, MODELS, [hint("c", 1.0, 105.0)], 100.0) is DEMAND
