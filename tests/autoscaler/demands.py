"""Histories and demands for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autoscaler.forecasting.history import NEVER, Forecast, ForecastHorizon, History
from autoscaler.planning.pool_view import Demand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.forecasting.history import Floats

HORIZON = ForecastHorizon(windows_s=(60.0, 600.0), probabilities=(0.5, 0.9))


def history(active: Sequence[Sequence[int]], *, now_min: int) -> History:
    """One model per sequence of minutes with arrivals; the current minute is `now_min`."""
    models, known = len(active), max(1, min(now_min, 2880))
    minutes = np.zeros((models, known), dtype=np.uint32)
    last = np.full((models, 128), NEVER, dtype=np.int64)
    for row, at in enumerate(active):
        kept = sorted(at)[-128:]
        if kept:
            last[row, -len(kept) :] = kept
        for minute in at:
            if now_min - known <= minute < now_min:
                minutes[row, minute - (now_min - known)] = 1
    return History(
        origin_s=60.0 * now_min,
        minutes=minutes,
        ten_minutes=np.zeros((models, 2016), dtype=np.uint32),
        active_minutes=last,
        since_minute=np.zeros(models, dtype=np.int64),
        recent=np.zeros(models),
    )


def demand(p_minute: Sequence[float], *, arrivals: Sequence[float] | None = None) -> Demand:
    """By model: P(arrival) in the next minute, and arrivals in it as mean and all quantiles."""
    models = len(p_minute)
    shape = (models, len(HORIZON.windows_s))
    p: Floats = np.asarray(p_minute, dtype=np.float64)
    counts = np.asarray(arrivals if arrivals is not None else [0.0] * models, dtype=np.float64)
    return Demand(
        history([[]] * models, now_min=10),
        HORIZON,
        Forecast(
            mean=np.broadcast_to(counts[:, None], shape).copy(),
            quantiles=np.broadcast_to(counts[:, None, None], (*shape, 2)).copy(),
            p_arrival=np.broadcast_to(p[:, None], shape).copy(),
        ),
        p,
    )
