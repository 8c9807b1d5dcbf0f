"""Classifies models by the pattern of their arrivals, with hysteresis.

Rules, in this order (classification before forecasting: SPES, Lee et al. 2024). Values in brackets
are for a model that has the pattern already.

- dead: no arrival for a day and for 8 (6) times its longest recent gap, or for 7 days.
- periodic: the autocorrelation of its counts has a peak of at least 0.5 (0.35) at a lag of 5
  minutes to 12 hours, or the gaps between its active minutes vary by less than 0.25 (0.35) of
  their mean.
- sparse: arrivals in less than 25 % (30 %) of minutes.
- bursty: the variance of arrivals per ten minutes is at least 3 (2) times their mean (Fano factor).
- steady: all others.

A model's first pattern is assigned at once, another one after it was found three times in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.history import (
    MINUTES_OF_DAY,
    MINUTES_OF_TEN,
    Booleans,
    Floats,
    History,
    Integers,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CONFIRMATIONS: Final = 3
_SHORTEST_PERIOD_MIN: Final = 5
_LONGEST_PERIOD_MIN: Final = 720
_CYCLES: Final = 4
"""Minimum number of observed cycles of a period."""
_MIN_GAPS: Final = 6
"""Minimum number of gaps that can count as regular."""
_NEAR_BEST: Final = 0.85
"""The period is the shortest lag with a peak of this share of the highest; others are multiples."""


class ArrivalPattern(IntEnum):
    """Patterns of arrivals."""

    DEAD = 0
    SPARSE = 1
    PERIODIC = 2
    STEADY = 3
    BURSTY = 4


@dataclass(frozen=True, slots=True)
class PatternAssignment:
    """Pattern of each model, and the state of the hysteresis. All arrays (models,)."""

    pattern: Integers
    period_min: Floats
    """Minutes; 0 without a period."""
    candidate: Integers
    """Pattern found last."""
    streak: Integers
    """How many times in a row the candidate was found."""


@dataclass(frozen=True, slots=True)
class ArrivalFeatures:
    """Input of the rules. All arrays (models,)."""

    age_min: Floats
    longest_gap_min: Floats
    gap_variation: Floats
    """Standard deviation of gaps over their mean; infinity with fewer than six gaps."""
    mean_gap_min: Floats
    active_share: Floats
    fano: Floats
    correlation: Floats
    period_min: Floats


def classify(history: History, previous: PatternAssignment | None = None) -> PatternAssignment:
    """`previous` is of the same models, in the same order."""
    features = _features(history)
    found = _rules(features, None if previous is None else previous.pattern)
    is_regular = (features.gap_variation < 0.35) & (features.correlation < 0.5)
    period = np.where(is_regular, features.mean_gap_min, features.period_min)
    if previous is None:
        return PatternAssignment(found, period, found, np.full(history.models, _CONFIRMATIONS))
    streak = np.where(found == previous.candidate, previous.streak + 1, 1)
    streak = np.minimum(streak, _CONFIRMATIONS)
    pattern = np.where(streak >= _CONFIRMATIONS, found, previous.pattern)
    period = np.where(found == ArrivalPattern.PERIODIC, period, previous.period_min)
    return PatternAssignment(pattern, period, found, streak)


def _features(history: History) -> ArrivalFeatures:
    longest, mean, variation = _gap_statistics(history.gaps_min)
    correlation, period = _periods(history)
    return ArrivalFeatures(
        age_min=np.minimum(history.age_minutes, history.origin_minute - history.since_minute),
        longest_gap_min=longest,
        gap_variation=variation,
        mean_gap_min=mean,
        active_share=(history.minutes != 0).sum(axis=1) / history.known_minutes,
        fano=_fano(history),
        correlation=correlation,
        period_min=period,
    )


def _rules(features: ArrivalFeatures, current: Integers | None) -> Integers:
    def limit(pattern: ArrivalPattern, enter: float, stay: float) -> Floats | float:
        return enter if current is None else np.where(current == pattern, stay, enter)

    age = features.age_min
    is_quiet = age >= limit(ArrivalPattern.DEAD, 8.0, 6.0) * np.maximum(
        features.longest_gap_min, 1.0
    )
    is_dead = ((age >= MINUTES_OF_DAY) & is_quiet) | (age >= 7 * MINUTES_OF_DAY)
    is_periodic = (features.correlation >= limit(ArrivalPattern.PERIODIC, 0.5, 0.35)) | (
        (features.gap_variation < limit(ArrivalPattern.PERIODIC, 0.25, 0.35))
        & (features.mean_gap_min >= _SHORTEST_PERIOD_MIN)
        & (age < 2 * features.mean_gap_min)
    )
    is_sparse = features.active_share < limit(ArrivalPattern.SPARSE, 0.25, 0.30)
    is_bursty = features.fano >= limit(ArrivalPattern.BURSTY, 3.0, 2.0)
    return np.select(
        [is_dead, is_periodic, is_sparse, is_bursty],
        [
            ArrivalPattern.DEAD,
            ArrivalPattern.PERIODIC,
            ArrivalPattern.SPARSE,
            ArrivalPattern.BURSTY,
        ],
        default=ArrivalPattern.STEADY,
    ).astype(np.int64)


def _gap_statistics(gaps: Floats) -> tuple[Floats, Floats, Floats]:
    """(models,) longest, mean, and standard deviation over mean."""
    is_gap = np.isfinite(gaps)
    count = is_gap.sum(axis=1)
    filled = np.where(is_gap, gaps, 0.0)
    mean = filled.sum(axis=1) / np.maximum(count, 1)
    variance = np.where(is_gap, (gaps - mean[:, None]) ** 2, 0.0).sum(axis=1)
    variation = np.sqrt(variance / np.maximum(count, 1)) / np.maximum(mean, 1e-9)
    return filled.max(axis=1), mean, np.where(count >= _MIN_GAPS, variation, np.inf)


def _fano(history: History) -> Floats:
    """(models,): variance over mean of arrivals per ten minutes, in the last known day."""
    bins = min(history.ten_minutes.shape[1], MINUTES_OF_DAY // MINUTES_OF_TEN)
    recent = history.ten_minutes[:, history.ten_minutes.shape[1] - bins :].astype(np.float64)
    known = np.clip(history.known_minutes // MINUTES_OF_TEN, 1, bins)
    mean = recent.sum(axis=1) / known
    variance = np.maximum((recent**2).sum(axis=1) / known - mean**2, 0.0)
    result: Floats = variance / np.maximum(mean, 1e-9)
    return result


def _periods(history: History) -> tuple[Floats, Floats]:
    """(models,): highest autocorrelation at a peak, and its lag in minutes; 0 without a peak."""
    longest = min(_LONGEST_PERIOD_MIN, history.minutes.shape[1] // _CYCLES)
    peaks, lags = np.zeros(history.models), np.zeros(history.models)
    rows = np.flatnonzero((history.minutes != 0).sum(axis=1) >= _MIN_GAPS)
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
