"""Forecasts of one pool between plans: learns when it is due, and renews only rows that are.

`due` says what a past must hold, `forecast` makes the demand of it; between the two nothing else is
asked. `forecast` may run in any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.burst_intervals import p_by_rhythm
from autoscaler.planning.demand_forecast import LEARN_EVERY_S, fit_model, forecast_demand
from autoscaler.planning.forecast_refresh import Freshness, due_rows, with_rows
from autoscaler.planning.pool_view import NEVER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from autoscaler.forecasting.history import Floats, History, Integers
    from autoscaler.planning.demand_forecast import FittedModel
    from autoscaler.planning.pool_view import Demand

YOUNG_S: Final = 10.0
"""A history of minutes is learnt from so often, a longer one whenever it has grown by a tenth."""

MOST_ARRIVALS: Final = 1e12
"""In a window: more is a mistake, being more than a question allows in a day."""


@dataclass(frozen=True, slots=True)
class Past:
    """What a forecast starts from."""

    models: tuple[str, ...]
    rows: Integers | None
    """The models of `history`, as places in `models`; None: all of them."""
    history: History
    seconds: Integers
    """(models, seconds): counts of the last minutes of all models, the second under way last."""


class DemandForecaster:
    """What is expected after a past, by what was learnt before. One owner."""

    def __init__(
        self,
        forecast_demand: Callable[[History, FittedModel], Demand] = forecast_demand,
        *,
        is_partial: bool = True,
    ) -> None:
        """Without `is_partial` every forecast is of all models, and has its history."""
        self._expect = forecast_demand
        self._is_partial = is_partial
        self._learnt: FittedModel | None = None
        self._learn_every_s = YOUNG_S
        self._base: Demand | None = None
        """Without rhythm."""
        self._known = Freshness(np.empty(0), np.empty(0))

    def due(
        self, models: tuple[str, ...], changed: Collection[str], now_s: float
    ) -> Integers | None:
        """The rows to forecast now; None: all, since it is time to learn, or models are others."""
        learnt = self._learnt
        if self._base is None or learnt is None or not self._is_partial or learnt.models != models:
            return None
        if not 0 <= now_s - learnt.origin_s < self._learn_every_s:
            return None
        is_changed = np.fromiter((name in changed for name in models), bool, len(models))
        rows = due_rows(self._known, is_changed, now_s)
        return None if rows.size == len(models) else rows

    def forecast(self, past: Past) -> Demand:
        """The demand of all models of the past. A failure leaves nothing half renewed."""
        base, self._base = self._base, None
        rows = past.rows
        if rows is None or base is None or self._learnt is None:
            base = self._whole(past)
        elif rows.size:
            part = self._expect(past.history, self._learnt.take(rows))
            base = with_rows(base, part, rows)
        self._note(past)
        self._base = base if is_sound(base) else None
        by_rhythm = p_by_rhythm(past.seconds, window_s=60.0)
        return replace(base, p_minute=1 - (1 - base.p_minute) * (1 - by_rhythm))

    def _whole(self, past: Past) -> Demand:
        history = past.history
        every_s = float(np.clip(history.known_minutes.max() * 6.0, YOUNG_S, LEARN_EVERY_S))
        self._learnt = fit_model(history, past.models, self._learnt, every_s=every_s)
        self._learn_every_s = every_s
        return self._expect(history, self._learnt)

    def _note(self, past: Past) -> None:
        """Remember when these rows were forecast, and when they were asked for."""
        history = past.history
        arrival_s = np.where(history.recent > 0, history.origin_s, NEVER_S)
        arrival_s = np.maximum(arrival_s, history.origin_s - 60 * history.age_minutes)
        forecast_s = np.full(history.models, history.origin_s)
        if past.rows is None:
            self._known = Freshness(forecast_s, arrival_s)
        else:
            self._known.forecast_s[past.rows] = forecast_s
            self._known.arrival_s[past.rows] = arrival_s


def is_sound(demand: Demand) -> bool:
    """Whether a forecast is finite, not negative and not absurd, as policies may expect it."""
    parts: tuple[Floats, ...] = (
        demand.forecast.mean, demand.forecast.quantiles, demand.forecast.p_arrival, demand.p_minute,
    )  # fmt: skip
    return all(bool(((each >= 0) & (each <= MOST_ARRIVALS)).all()) for each in parts)
