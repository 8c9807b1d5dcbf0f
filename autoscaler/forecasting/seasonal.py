"""Arrivals of models with a period: what came at the same phase of the cycles before.

The mean over cycles, raised or lowered by how the last hours compare with the same hours of those
cycles; noise from how cycles differ; P(arrival) from the share of cycles with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.history import MINUTES_OF_DAY, Booleans, Floats, History

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_CYCLES: Final = 24
_LEVEL_CYCLES: Final = 2.0
"""How the level compares with the cycles before is taken over so many periods, up to six hours."""
_LEVEL_MAX_MIN: Final = 360.0
_LEVEL_ARRIVALS: Final = 5.0
"""So many arrivals as expected are added before comparing, so that few say little."""
_LEANING: Final = 1.0
"""Weight of the noise's own P(arrival), in cycles."""
_SHARED_CYCLES: Final = 3.0
_SHARED_SIZE: Final = 4.0
"""Noise is that of so many more cycles with a negative binomial of this size."""


@dataclass(frozen=True, slots=True)
class Seasonal:
    """Means, sizes and P(arrival), (models, windows); `is_known` where a whole cycle was seen."""

    mean: Floats
    size: Floats
    p_arrival: Floats
    is_known: Booleans


def seasonal(history: History, period_min: Floats, windows_min: Floats) -> Seasonal:
    """Forecast each model by its own period (minutes, positive)."""
    total = np.cumsum(history.minutes, axis=1, dtype=np.float64)
    total = np.pad(total, ((0, 0), (1, 0)))
    period = np.maximum(period_min, 1.0)[:, None]
    cycles = np.arange(1, _MOST_CYCLES + 1)
    bins = history.minutes.shape[1]
    starts = bins - cycles * period
    first = bins - history.known_minutes[:, None]
    level = _level(total, period, first)
    columns = [_window(total, starts, first, length) for length in windows_min]
    seen = np.stack([column[0] for column in columns], axis=1)
    usable = np.stack([column[1] for column in columns], axis=1)
    return _summary(seen, usable, level[:, None])


def _window(total: Floats, starts: Floats, first: Floats, length: float) -> tuple[Floats, Booleans]:
    """(models, cycles): arrivals in windows of a length from the starts on, and which are whole."""
    ends = starts + max(length, 1.0)
    usable = (starts >= first) & (ends <= total.shape[1] - 1)
    # Windows of less than a minute: the share of the minute in which they begin.
    share = min(length, 1.0)
    return (_at(total, ends) - _at(total, starts)) * share, usable


def _at(total: Floats, places: Floats) -> Floats:
    """Running totals at fractional places, by interpolation."""
    places = np.clip(places, 0, total.shape[1] - 1)
    left = np.floor(places).astype(np.int64)
    right = np.minimum(left + 1, total.shape[1] - 1)
    low = np.take_along_axis(total, left, axis=1)
    return low + (np.take_along_axis(total, right, axis=1) - low) * (places - left)


def recurring_means(
    history: History, period_min: Floats, lags: Sequence[int], windows_min: Floats
) -> Floats:
    """(models, lags, windows, 2): means by the own period and by the day before; NaN where unknown.

    As seen `lag` minutes before the last whole minute ended; nothing later is looked at.
    """
    total = np.pad(np.cumsum(history.minutes, axis=1, dtype=np.float64), ((0, 0), (1, 0)))
    first = history.minutes.shape[1] - history.known_minutes[:, None]
    result = np.full((history.models, len(lags), windows_min.size, 2), np.nan)
    day = np.full(history.models, float(MINUTES_OF_DAY))
    own = np.flatnonzero(period_min > 0)
    for at, lag in enumerate(lags):
        past = total[:, : total.shape[1] - lag]
        result[own, at, :, 0] = _cycle_means(past[own], first[own], period_min[own], windows_min)
        result[:, at, :, 1] = _cycle_means(past, first, day, windows_min)
    return result


def _cycle_means(total: Floats, first: Floats, period_min: Floats, windows_min: Floats) -> Floats:
    """(models, windows): mean over cycles times the level; NaN where no cycle is known."""
    period = np.maximum(period_min, 1.0)[:, None]
    most = max(1, min(_MOST_CYCLES, int(total.shape[1] / period.min(initial=total.shape[1]))))
    starts = total.shape[1] - 1 - np.arange(1, most + 1) * period
    level = _level(total, period, first)
    means = np.empty((total.shape[0], windows_min.size))
    for column, length in enumerate(windows_min):
        seen, usable = _window(total, starts, first, length)
        count = usable.sum(axis=1)
        mean = (seen * usable).sum(axis=1) / np.maximum(count, 1)
        means[:, column] = np.where(count > 0, mean * level, np.nan)
    return means


def _level(total: Floats, period: Floats, first: Floats) -> Floats:
    """(models,): the last hours over the same hours of the cycles before; 1 without any."""
    end = total.shape[1] - 1.0
    length = np.minimum(_LEVEL_CYCLES * period, _LEVEL_MAX_MIN)
    skip = np.ceil(length / period)
    back = (skip + np.arange(4)) * period
    usable = end - back - length >= first
    now = _at(total, np.full_like(length, end)) - _at(total, end - length)
    then = (_at(total, end - back) - _at(total, end - back - length)) * usable
    mean = then.sum(axis=1) / np.maximum(usable.sum(axis=1), 1)
    level = (now[:, 0] + _LEVEL_ARRIVALS) / (mean + _LEVEL_ARRIVALS)
    return np.where(usable.any(axis=1), level, 1.0)


def _summary(seen: Floats, usable: Booleans, level: Floats) -> Seasonal:
    count = usable.sum(axis=-1)
    cycles = np.maximum(count, 1)
    mean = (seen * usable).sum(axis=-1) / cycles
    squared = ((seen - mean[..., None]) ** 2 * usable).sum(axis=-1)
    squared *= (cycles + 1) / np.maximum(cycles - 1, 1)
    excess = np.maximum(squared - cycles * mean, 0) + _SHARED_CYCLES * mean**2 / _SHARED_SIZE
    size = (cycles + _SHARED_CYCLES) * mean**2 / np.maximum(excess, 1e-12)
    size = np.clip(size, negative_binomial.SIZE_MIN, negative_binomial.SIZE_MAX)
    mean = np.maximum(mean * level, 0.0)
    hits = ((seen > 0) & usable).sum(axis=-1)
    p_arrival = (hits + _LEANING * negative_binomial.p_some(mean, size)) / (count + _LEANING)
    return Seasonal(mean=mean, size=size, p_arrival=p_arrival, is_known=count >= 2)
