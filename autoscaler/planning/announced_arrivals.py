"""A demand with arrivals that were announced, such as the next steps of workflows. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.hints import Hint, with_hints
from autoscaler.planning.expected_arrivals import MINUTE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.planning.pool_view import Demand
    from registry.domain.demand import ArrivalHint

_SOON_S: Final = 1.0
"""Announced arrivals that are overdue are expected within this time."""


def with_announced(
    demand: Demand, models: Sequence[str], hints: Sequence[ArrivalHint], now_s: float
) -> Demand:
    """Forecast and P(arrival within a minute) raised by hints; never lowered.

    `models`: the demand's rows. Hints on other models count nothing.
    """
    rows = {model: row for row, model in enumerate(models)}
    known = [
        Hint(
            rows[str(each.model)], each.probability, max(each.until_s - now_s, _SOON_S), each.count
        )
        for each in hints
        if str(each.model) in rows
    ]
    if not known:
        return demand
    p_none = np.ones(len(models))
    for hint in known:
        p_none[hint.row] *= 1 - hint.probability * min(MINUTE_S / hint.within_s, 1.0)
    return replace(
        demand,
        forecast=with_hints(demand.forecast, known, demand.horizon),
        p_minute=np.where(p_none < 1, 1 - (1 - demand.p_minute) * p_none, demand.p_minute),
    )
