"""Classifies models by the pattern of their arrivals.

Rules, in this order (classification before forecasting: SPES, Lee et al. 2024):

- periodic: the autocorrelation of its counts has a peak of at least 0.5 at a lag of 5 minutes to
  12 hours; or the gaps between its active minutes are longer and vary by less than 0.25 of their
  mean.
- sparse: arrivals in less than 25 % of minutes.
- steady: all others.

Reasons for these three: research/docs/forecasting.md.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.history import Booleans, Floats, History, Integers

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
    """Patterns of arrivals."""

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
