"""What kind of model it is by how its requests arrive; a type holds until it is clearly another.

Rules, in this order (typing first, one rule per type: SPES, Lee et al. 2024). Values in brackets
keep a type that a model already has.

- dead: no arrival for a day and for 8 (6) times its longest recent gap, or for 7 days.
- periodic: the autocorrelation of its counts has a peak of at least 0.5 (0.35) at a lag of 5
  minutes to 12 hours, or the gaps between its active minutes vary by less than 0.25 (0.35) of
  their mean.
- sparse: arrivals in less than 25 % (30 %) of minutes.
- bursty: the variance of arrivals per ten minutes is at least 3 (2) times their mean (Fano factor).
- steady: all others.

A new type is taken once it was found three times running; the first time at once.
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
"""A period must have been seen so many times."""
_GAPS: Final = 6
"""Gaps must be so many to be called regular."""
_NEAR_BEST: Final = 0.85
"""The shortest lag whose peak is this near the highest is the period; the others are multiples."""


class ArrivalPattern(IntEnum):
    """Types of behaviour."""

    DEAD = 0
    SPARSE = 1
    PERIODIC = 2
    STEADY = 3
    BURSTY = 4


@dataclass(frozen=True, slots=True)
class PatternAssignment:
    """Type per model, and what is needed not to flap. All arrays (models,)."""

    kind: Integers
    period_min: Floats
    """Minutes; 0 unless one was found."""
    candidate: Integers
    """What the last look found."""
    streak: Integers
    """How many looks running found the candidate."""


@dataclass(frozen=True, slots=True)
class Features:
    """What the rules look at. All arrays (models,)."""

    age_min: Floats
    longest_gap_min: Floats
    gap_variation: Floats
    """Standard deviation of gaps over their mean; infinite with fewer than six."""
    mean_gap_min: Floats
    active_share: Floats
    fano: Floats
    correlation: Floats
    period_min: Floats


def classify(history: History, previous: PatternAssignment | None = None) -> PatternAssignment:
    """The type of each model. `previous` is of the same models, in the same order."""
    features = describe(history)
    kept = None if previous is None else previous.kind
    found = _rules(features, kept)
    is_regular = (features.gap_variation < 0.35) & (features.correlation < 0.5)
    period = np.where(is_regular, features.mean_gap_min, features.period_min)
    if previous is None:
        return PatternAssignment(found, period, found, np.full(history.models, _CONFIRMATIONS))
    streak = np.where(found == previous.candidate, previous.streak + 1, 1)
    streak = np.minimum(streak, _CONFIRMATIONS)
    kind = np.where(streak >= _CONFIRMATIONS, found, previous.kind)
    period = np.where(found == ArrivalPattern.PERIODIC, period, previous.period_min)
    return PatternAssignment(kind, period, found, streak)


def describe(history: History) -> Features:
    """What the rules look at, from the last two days of minutes and the last active minutes."""
    known = history.known_minutes
    longest, mean, variation = _gap_statistics(history.gaps_min)
    correlation, period = _periods(history)
    return Features(
        age_min=np.minimum(history.age_minutes, history.origin_minute - history.since_minute),
        longest_gap_min=longest,
        gap_variation=variation,
        mean_gap_min=mean,
        active_share=(history.minutes != 0).sum(axis=1) / known,
        fano=_fano(history),
        correlation=correlation,
        period_min=period,
    )


def _rules(features: Features, kept: Integers | None) -> Integers:
    def limit(kind: ArrivalPattern, enter: float, stay: float) -> Floats | float:
        return enter if kept is None else np.where(kept == kind, stay, enter)

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
    return filled.max(axis=1), mean, np.where(count >= _GAPS, variation, np.inf)


def _fano(history: History) -> Floats:
    """(models,): variance over mean of arrivals per ten minutes in the last day of known counts."""
    bins = min(history.tens.shape[1], MINUTES_OF_DAY // MINUTES_OF_TEN)
    recent = history.tens[:, history.tens.shape[1] - bins :].astype(np.float64)
    known = np.clip(history.known_minutes // MINUTES_OF_TEN, 1, bins)
    mean = recent.sum(axis=1) / known
    variance = np.maximum((recent**2).sum(axis=1) / known - mean**2, 0.0)
    result: Floats = variance / np.maximum(mean, 1e-9)
    return result


def _periods(history: History) -> tuple[Floats, Floats]:
    """(models,): highest autocorrelation at a peak, and its lag in minutes; 0 without one."""
    longest = min(_LONGEST_PERIOD_MIN, history.minutes.shape[1] // _CYCLES)
    peaks, lags = np.zeros(history.models), np.zeros(history.models)
    rows = np.flatnonzero((history.minutes != 0).sum(axis=1) >= _GAPS)
    if longest <= _SHORTEST_PERIOD_MIN:
        return peaks, lags
    for part in np.array_split(rows, max(1, rows.size // 512)):
        correlation = _autocorrelation(history.minutes[part], longest + 1)
        enough = history.known_minutes[part, None] >= _CYCLES * np.arange(longest + 2)
        peaks[part], lags[part] = _best_peak(np.where(enough, correlation, 0.0), longest)
    return peaks, lags


def _autocorrelation(counts: NDArray[np.generic], longest: int) -> Floats:
    """(rows, longest + 1): by FFT; smoothed over three minutes, so that jitter is allowed."""
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
    # A slow trend has no dip before its lag: what stands out from the dip before counts.
    dip = np.minimum.accumulate(correlation[:, 1 : longest - _SHORTEST_PERIOD_MIN + 2], axis=1)
    height: Floats = np.where(is_peak, np.minimum(inner, inner - np.maximum(dip, 0.0)), 0.0)
    best = height.max(axis=1)
    first: Booleans = (height >= _NEAR_BEST * best[:, None]) & (height > 0)
    return best, np.where(best > 0, first.argmax(axis=1) + _SHORTEST_PERIOD_MIN, 0).astype(float)
