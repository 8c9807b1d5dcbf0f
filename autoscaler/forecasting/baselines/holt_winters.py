"""Holt-Winters with an additive season of a day and a damped trend, on counts per ten minutes.

Source: Hyndman and Athanasopoulos 2021, sections 8.3 and 8.4. Smoothing constants are fixed:
level 0.2, trend 0.01, season 0.1, damping 0.98. Additive, because most counts are zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.baselines.measured_noise import with_measured_noise
from autoscaler.forecasting.day_profile import BINS
from autoscaler.forecasting.history import MINUTES_OF_TEN

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Floats, History

_LEVEL: Final = 0.2
_TREND: Final = 0.01
_SEASON: Final = 0.1
_DAMPING: Final = 0.98


def _means(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    ten_minutes = np.ascontiguousarray(history.ten_minutes.T.astype(np.float64))
    bins = ten_minutes.shape[0]
    origins = {bins - lag // MINUTES_OF_TEN: at for at, lag in enumerate(lags)}
    result = np.zeros((history.models, len(lags), windows_min.size))
    level, trend = ten_minutes[:BINS].mean(axis=0), np.zeros(history.models)
    season = np.zeros((BINS, history.models))
    for step in range(bins + 1):
        if step in origins:
            ahead = _ahead(level, trend, season, step, windows_min)
            result[:, origins[step]] = ahead
        if step == bins:
            break
        now, row = season[step % BINS].copy(), ten_minutes[step]
        previous = level
        level = _LEVEL * (row - now) + (1 - _LEVEL) * (level + _DAMPING * trend)
        trend = _TREND * (level - previous) + (1 - _TREND) * _DAMPING * trend
        season[step % BINS] = _SEASON * (row - level) + (1 - _SEASON) * now
    return result


def _ahead(level: Floats, trend: Floats, season: Floats, step: int, windows_min: Floats) -> Floats:
    """(models, windows): arrivals from `step` on, not negative."""
    steps = int(np.ceil(windows_min.max() / MINUTES_OF_TEN))
    damped = np.cumsum(_DAMPING ** np.arange(1, steps + 1))[:, None]
    each = level + damped * trend + season[(step + np.arange(steps)) % BINS]
    total = np.cumsum(np.maximum(each, 0.0), axis=0)
    edges = np.arange(steps + 1) * float(MINUTES_OF_TEN)
    total = np.concatenate([np.zeros((1, level.size)), total])
    place = np.searchsorted(edges, windows_min, side="right") - 1
    after = np.minimum(place + 1, steps)
    share = ((windows_min - edges[place]) / MINUTES_OF_TEN)[:, None]
    result: Floats = (total[place] + (total[after] - total[place]) * share).T
    return result


holt_winters: Final = with_measured_noise(_means)
