"""Which models to forecast anew, and the demand with their new rows. Pure.

A forecast changes with the model's arrivals, and while none come slowly: by how long they have not
come. So a model is due at once when it was asked for, then whenever its silence has grown by a
tenth, and after `LONGEST_S` in any case, since minutes pass and timers come nearer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.history import Forecast

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Booleans, Floats, Integers
    from autoscaler.planning.pool_view import Demand

LONGEST_S: Final = 10.0
"""Age at which every forecast is due."""
MOST_AT_ONCE: Final = 2_500
"""Models forecast at a time: the oldest forecasts first. Small pools are forecast whole."""
_SILENCE_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Freshness:
    """Of each model, (models,): when it was forecast, and asked for last; seconds of one clock."""

    forecast_s: Floats
    arrival_s: Floats
    """Minus infinity: never."""


def due_rows(
    known: Freshness, changed: Booleans, now_s: float, *, most: int = MOST_AT_ONCE
) -> Integers:
    """The models to forecast now, in their order. `changed`: asked for since their forecast.

    A forecast of a time to come is one of a clock that has gone back: it is due.
    """
    age_s = now_s - known.forecast_s
    stays_s = np.minimum(_SILENCE_SHARE * np.maximum(now_s - known.arrival_s, 0.0), LONGEST_S)
    is_due = changed | (age_s < 0) | (age_s >= stays_s)
    rows = np.flatnonzero(is_due)
    if rows.size > most:
        oldest = np.argsort(np.minimum(known.forecast_s, now_s)[rows], kind="stable")
        rows = np.sort(rows[oldest[:most]])
    return rows


def with_rows(demand: Demand, part: Demand, rows: Integers) -> Demand:
    """The demand with some rows forecast anew. It has no history: rows have different origins."""
    of, to = part.forecast, demand.forecast
    return replace(
        demand,
        history=None,
        forecast=Forecast(
            mean=_put(to.mean, of.mean, rows),
            quantiles=_put(to.quantiles, of.quantiles, rows),
            p_arrival=_put(to.p_arrival, of.p_arrival, rows),
        ),
        p_minute=_put(demand.p_minute, part.p_minute, rows),
    )


def _put(whole: Floats, part: Floats, rows: Integers) -> Floats:
    changed = whole.copy()
    changed[rows] = part
    return changed
