"""Classifies models by their arrival pattern, and forecasts those with a period by earlier cycles.

Mean: the mean over cycles multiplied by the level. Level: the arrivals of the last hours divided by
those of the same hours in earlier cycles. Noise: the variance between cycles. P(arrival): the share
of cycles with an arrival.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.history import MINUTES_OF_DAY, Booleans, Floats, History, Integers

_CHUNK: Final = 512
"""Models per pass; every pass reuses the memory of the running totals."""
_MAX_CYCLES: Final = 24
_LEVEL_CYCLES: Final = 2.0
"""The level is measured over this many periods, up to `_LEVEL_MAX_MIN`."""
_LEVEL_MAX_MIN: Final = 360.0
_LEVEL_PAST: Final = 4
"""Number of earlier cycles that the level compares with."""
_LEVEL_ARRIVALS: Final = 5.0
"""Arrivals added to both sides of the level, to shrink it towards 1."""
_PRIOR_CYCLES: Final = 1.0
"""Weight, in cycles, of P(arrival) by the negative binomial."""
_SHARED_CYCLES: Final = 3.0
_SHARED_SIZE: Final = 4.0
"""Prior of the noise: `_SHARED_CYCLES` cycles of a negative binomial of size `_SHARED_SIZE`."""


@dataclass(frozen=True, slots=True)
class Seasonal:
    """Means and P(arrival), (models, windows); `is_known`: at least two whole cycles observed."""

    mean: Floats
    p_arrival: Floats
    is_known: Booleans


def seasonal(history: History, period_min: Floats, windows_min: Floats) -> Seasonal:
    """Forecast each model by its own period, in minutes, positive."""
    total = _running_totals(history.minutes)
    period = np.maximum(period_min, 1.0)[:, None]
    cycles = np.arange(1, _MAX_CYCLES + 1)
    bins = history.minutes.shape[1]
    starts = bins - cycles * period
    first = bins - history.known_minutes[:, None]
    level = _level(total, period, first)
    columns = [_window(total, starts, first, length) for length in windows_min]
    arrived = np.stack([column[0] for column in columns], axis=1)
    usable = np.stack([column[1] for column in columns], axis=1)
    return _summary(arrived, usable, level[:, None])


def _window(total: Floats, starts: Floats, first: Floats, length: float) -> tuple[Floats, Booleans]:
    """(models, cycles): arrivals in windows of a length from `starts`, and which ones are known."""
    ends = starts + max(length, 1.0)
    usable = (starts >= first) & (ends <= total.shape[1] - 1)
    # A window shorter than a minute gets its share of the minute in which it begins.
    share = min(length, 1.0)
    return (_at(total, ends) - _at(total, starts)) * share, usable


def _at(total: Floats, places: Floats) -> Floats:
    """Running totals at fractional minutes, by interpolation."""
    places = np.clip(places, 0, total.shape[1] - 1)
    left = np.floor(places).astype(np.int64)
    right = np.minimum(left + 1, total.shape[1] - 1)
    rows = np.arange(total.shape[0])[
        :, None
    ]  # `take_along_axis` takes twice as long for few models
    low = total[rows, left]
    result: Floats = low + (total[rows, right] - low) * (places - left)
    return result


def recurring_means(
    history: History, period_min: Floats, lags: Sequence[int], windows_min: Floats
) -> Floats:
    """(models, lags, windows, 2): means by the model's period and by a period of a day, or NaN.

    Each mean is as of `lag` minutes before the end of the last whole minute. NaN: unknown.
    """
    first = history.minutes.shape[1] - history.known_minutes[:, None]
    result = np.full((history.models, len(lags), windows_min.size, 2), np.nan)
    for start in range(0, history.models, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, history.models))
        total = _running_totals(history.minutes[rows])
        own = rows[period_min[rows] > 0]
        day = np.full(rows.size, float(MINUTES_OF_DAY))
        for at, lag in enumerate(lags):
            past = total[:, : total.shape[1] - lag]
            by_own = _cycle_means(past[own - start], first[own], period_min[own], windows_min)
            result[own, at, :, 0] = by_own
            result[rows, at, :, 1] = _cycle_means(past, first[rows], day, windows_min)
    return result


def _running_totals(minutes: NDArray[np.generic]) -> Floats:
    """(models, bins + 1): arrivals before each minute, and in total."""
    total = np.zeros((minutes.shape[0], minutes.shape[1] + 1))
    np.cumsum(minutes, axis=1, dtype=np.float64, out=total[:, 1:])
    return total


def _cycle_means(total: Floats, first: Floats, period_min: Floats, windows_min: Floats) -> Floats:
    """(models, windows): mean over cycles times the level; NaN where no cycle is known."""
    period = np.maximum(period_min, 1.0)[:, None]
    most = max(1, min(_MAX_CYCLES, int(total.shape[1] / period.min(initial=total.shape[1]))))
    starts = total.shape[1] - 1 - np.arange(1, most + 1) * period
    level = _level(total, period, first)
    means = np.empty((total.shape[0], windows_min.size))
    for column, length in enumerate(windows_min):
        arrived, usable = _window(total, starts, first, length)
        count = usable.sum(axis=1)
        mean = (arrived * usable).sum(axis=1) / np.maximum(count, 1)
        means[:, column] = np.where(count > 0, mean * level, np.nan)
    return means


def _level(total: Floats, period: Floats, first: Floats) -> Floats:
    """(models,): arrivals of the last hours over those of earlier cycles; 1 without a cycle."""
    end = total.shape[1] - 1.0
    length = np.minimum(_LEVEL_CYCLES * period, _LEVEL_MAX_MIN)
    skip = np.ceil(length / period)
    back = (skip + np.arange(_LEVEL_PAST)) * period
    usable = end - back - length >= first
    now = _at(total, np.full_like(length, end)) - _at(total, end - length)
    then = (_at(total, end - back) - _at(total, end - back - length)) * usable
    mean = then.sum(axis=1) / np.maximum(usable.sum(axis=1), 1)
    level = (now[:, 0] + _LEVEL_ARRIVALS) / (mean + _LEVEL_ARRIVALS)
    return np.where(usable.any(axis=1), level, 1.0)


def _summary(arrived: Floats, usable: Booleans, level: Floats) -> Seasonal:
    count = usable.sum(axis=-1)
    cycles = np.maximum(count, 1)
    mean = (arrived * usable).sum(axis=-1) / cycles
    squared = ((arrived - mean[..., None]) ** 2 * usable).sum(axis=-1)
    squared *= (cycles + 1) / np.maximum(cycles - 1, 1)
    excess = np.maximum(squared - cycles * mean, 0) + _SHARED_CYCLES * mean**2 / _SHARED_SIZE
    size = (cycles + _SHARED_CYCLES) * mean**2 / np.maximum(excess, 1e-12)
    size = np.clip(size, negative_binomial.MIN_SIZE, negative_binomial.MAX_SIZE)
    mean = np.maximum(mean * level, 0.0)
    hits = ((arrived > 0) & usable).sum(axis=-1)
    p_arrival = (hits + _PRIOR_CYCLES * negative_binomial.p_at_least_one(mean, size)) / (
        count + _PRIOR_CYCLES
    )
    return Seasonal(mean=mean, p_arrival=p_arrival, is_known=count >= 2)


_MIN_CORRELATION: Final = 0.5
_MAX_GAP_VARIATION: Final = 0.25
_MAX_SPARSE_SHARE: Final = 0.25
_SHORTEST_PERIOD_MIN: Final = 5
_LONGEST_PERIOD_MIN: Final = 720
_CYCLES: Final = 4
"""Minimum number of observed cycles of a period."""
_MIN_ACTIVE_MINUTES: Final = 6
"""Minimum number of minutes with arrivals, and of gaps, of a model with a period."""
_NEAR_BEST: Final = 0.85
"""The period is the shortest lag with a peak of this share of the highest; others are multiples."""


class ArrivalPattern(IntEnum):
    SPARSE = 0
    PERIODIC = 1
    STEADY = 2


@dataclass(frozen=True, slots=True)
class PatternAssignment:
    """Pattern of each model. Both arrays (models,)."""

    pattern: Integers
    period_min: Floats
    """Lag of the autocorrelation's best peak, whatever its height; 0 without a peak."""


def classify(history: History) -> PatternAssignment:
    """Pattern of each model; the first rule that holds decides.

    - periodic: the autocorrelation of its counts has a peak of at least 0.5 at a lag of 5 minutes
      to 12 hours; or the gaps between its active minutes are longer and vary by less than 0.25 of
      their mean.
    - sparse: arrivals in less than 25 % of minutes.
    - steady: all others.

    Classification before forecasting: SPES, Lee et al. 2024; reasons: research/docs/forecasting.md.
    """
    correlation, period = _periods(history)
    gap = _regular_gaps(history)
    active_share = (history.minutes != 0).sum(axis=1) / history.known_minutes
    pattern = np.select(
        [(correlation >= _MIN_CORRELATION) | (gap > 0), active_share < _MAX_SPARSE_SHARE],
        [ArrivalPattern.PERIODIC, ArrivalPattern.SPARSE],
        default=ArrivalPattern.STEADY,
    )
    return PatternAssignment(pattern.astype(np.int64), np.where(gap > 0, gap, period))


def _regular_gaps(history: History) -> Floats:
    """(models,): mean gap in minutes if gaps are regular and too long for `_periods`; else 0."""
    gaps = history.gaps_min
    is_gap = np.isfinite(gaps)
    count = np.maximum(is_gap.sum(axis=1), 1)
    mean = np.where(is_gap, gaps, 0.0).sum(axis=1) / count
    variance = np.where(is_gap, (gaps - mean[:, None]) ** 2, 0.0).sum(axis=1) / count
    is_regular = (count >= _MIN_ACTIVE_MINUTES) & (variance < (_MAX_GAP_VARIATION * mean) ** 2)
    is_long = (mean > _LONGEST_PERIOD_MIN) & (history.age_minutes < 2 * mean)
    return np.where(is_regular & is_long, mean, 0.0)


def _periods(history: History) -> tuple[Floats, Floats]:
    """(models,): highest autocorrelation at a peak, and its lag in minutes; 0 without a peak."""
    longest = min(_LONGEST_PERIOD_MIN, history.minutes.shape[1] // _CYCLES)
    peaks, lags = np.zeros(history.models), np.zeros(history.models)
    rows = np.flatnonzero((history.minutes != 0).sum(axis=1) >= _MIN_ACTIVE_MINUTES)
    if longest <= _SHORTEST_PERIOD_MIN:
        return peaks, lags
    for part in np.array_split(rows, max(1, rows.size // 512)):
        correlation = _autocorrelation(history.minutes[part], longest + 1)
        is_known = history.known_minutes[part, None] >= _CYCLES * np.arange(longest + 2)
        peaks[part], lags[part] = _best_peak(np.where(is_known, correlation, 0.0), longest)
    return peaks, lags


def _autocorrelation(counts: NDArray[np.generic], longest: int) -> Floats:
    """(rows, longest + 1): by FFT; counts are smoothed over three minutes to tolerate jitter."""
    values = counts.astype(np.float32)
    values -= values.mean(axis=1, keepdims=True)
    values[:, 1:-1] = (values[:, :-2] + 2 * values[:, 1:-1] + values[:, 2:]) / 4
    size = 1 << (values.shape[1] + longest).bit_length()
    spectrum = np.fft.rfft(values, size, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    sums = np.fft.irfft(power, size, axis=1)[:, : longest + 1]
    scale = values.shape[1] - np.arange(longest + 1)
    result: Floats = (sums / scale) / np.maximum(sums[:, :1] / values.shape[1], 1e-12)
    return result


def _best_peak(correlation: Floats, longest: int) -> tuple[Floats, Floats]:
    inner = correlation[:, _SHORTEST_PERIOD_MIN : longest + 1]
    left = correlation[:, _SHORTEST_PERIOD_MIN - 1 : longest]
    right = correlation[:, _SHORTEST_PERIOD_MIN + 1 : longest + 2]
    is_peak = (inner >= left) & (inner > right)
    # A slow trend has no dip before its lag: the height of a peak is over the dip before it.
    dip = np.minimum.accumulate(correlation[:, 1 : longest - _SHORTEST_PERIOD_MIN + 2], axis=1)
    height: Floats = np.where(is_peak, np.minimum(inner, inner - np.maximum(dip, 0.0)), 0.0)
    best = height.max(axis=1)
    first: Booleans = (height >= _NEAR_BEST * best[:, None]) & (height > 0)
    return best, np.where(best > 0, first.argmax(axis=1) + _SHORTEST_PERIOD_MIN, 0).astype(float)
