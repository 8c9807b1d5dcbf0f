"""Selects the models whose forecast is due, and replaces their rows of the demand. Pure.

A forecast changes at once with new arrivals, and slowly with the time since the last one. So a
model is due after an arrival, then after each growth of that time by a tenth, and in any case after
`MAX_AGE_S`, since periodic arrivals come nearer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.history import Forecast

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Booleans, Floats, Integers
    from autoscaler.planning.pool_view import Demand

MAX_AGE_S: Final = 10.0
"""Age at which every forecast is due."""
MAX_ROWS: Final = 2_500
"""Maximum number of models per forecast; the oldest forecasts go first."""
_IDLE_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Freshness:
    """Times of each model's forecast and last arrival, (models,), seconds on one clock."""

    forecast_s: Floats
    arrival_s: Floats
    """Minus infinity without arrivals."""


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
