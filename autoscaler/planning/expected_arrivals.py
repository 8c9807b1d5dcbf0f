"""Expected arrivals per second by model, from a forecast. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Floats
    from autoscaler.planning.pool_view import Demand

MINUTE_S: Final = 60.0
_MAX_P: Final = 0.99
"""P(arrival within a minute) from which on arrivals are continuous."""


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
