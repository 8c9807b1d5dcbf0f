"""Operational time, and expected arrivals as a mixture of exponential averages by past errors.

Every average is a linear function of the counts, so all forecasts at past origins cost one matrix
product. Their errors give the weights and the noise for each window length, including the larger
spread over an hour of arrivals in bursts. Exponential smoothing with count noise: Gardner 2006,
section 3; weights by past loss: Vovk 1990.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.history import MINUTES_OF_DAY, MINUTES_OF_TEN, Floats, History
from autoscaler.forecasting.patterns import recurring_means

BINS: Final = MINUTES_OF_DAY // MINUTES_OF_TEN
_FLOOR: Final = 0.03
"""Minimum of a profile, whose mean is 1: a time of day without arrivals may be chance."""
_KERNEL: Final = np.array([1, 2, 3, 2, 1]) / 9
_SHARED_ARRIVALS: Final = 20.0
"""Arrivals per time of day at which a model's own profile weighs as much as the shared one."""


def shared_profile(history: History) -> Floats:
    """(BINS,) with mean 1. Each model weighs by the square root of its arrivals.

    Flat while less than a day is known; shrunk towards flat by the number of days.
    """
    days = _known_days(history)
    if days < 1 or not history.models:
        return np.ones(BINS)
    by_day = _by_time_of_day(history)
    total = by_day.sum(axis=1)
    summed = (by_day / np.sqrt(np.maximum(total, 1.0))[:, None]).sum(axis=0)
    if not summed.sum():
        return np.ones(BINS)
    shape = _smooth(summed / summed.mean())
    shape = np.maximum((days * shape + 1.0) / (days + 1.0), _FLOOR)
    result: Floats = shape / shape.mean()
    return result


def own_profiles(history: History, shared: Floats) -> Floats:
    """(models, BINS), each with mean 1.

    A profile is fitted to the model's arrivals and `_SHARED_ARRIVALS` per time of day, distributed
    as in `shared`.
    """
    by_day = _smooth(_by_time_of_day(history))
    each = np.maximum(by_day + _SHARED_ARRIVALS * shared, 1e-9)
    profiles = np.maximum(each / each.mean(axis=1, keepdims=True), _FLOOR)
    result: Floats = profiles / profiles.mean(axis=1, keepdims=True)
    return result


def operational_minutes(minutes: Floats, profile: Floats) -> Floats:
    """Convert times to operational time, both in minutes; a day has 1440 minutes in both.

    In it all models' arrivals together are uniform over the day, so that a quiet night does not
    lengthen the gap between two arrivals.
    """
    edges = np.concatenate([[0.0], np.cumsum(profile) * MINUTES_OF_TEN])
    day, within = np.divmod(minutes, MINUTES_OF_DAY)
    grid = np.arange(BINS + 1) * MINUTES_OF_TEN
    result: Floats = day * MINUTES_OF_DAY + np.interp(within, grid, edges)
    return result


def span_weights(start_min: float, length_min: float) -> Floats:
    """(BINS,) with sum 1: the share of a span of time in each time of day."""
    days, rest = divmod(length_min, MINUTES_OF_DAY)
    weights = np.full(BINS, days * MINUTES_OF_TEN, dtype=np.float64)
    edges = np.arange(2 * BINS + 1) * float(MINUTES_OF_TEN)
    start = start_min % MINUTES_OF_DAY
    covered = np.clip(edges[1:], start, start + rest) - np.clip(edges[:-1], start, start + rest)
    weights += covered[:BINS] + covered[BINS:]
    result: Floats = weights / weights.sum()
    return result


def decay_weights(end_min: float, half_life_min: float) -> Floats:
    """(BINS,) with sum 1: the weight of each time of day in an exponential average."""
    steps = np.arange(4 * BINS)
    weights = np.exp2(-(steps + 0.5) * MINUTES_OF_TEN / half_life_min)
    at = ((end_min - (steps + 0.5) * MINUTES_OF_TEN) // MINUTES_OF_TEN).astype(np.int64) % BINS
    summed = np.bincount(at, weights=weights, minlength=BINS)
    result: Floats = summed / summed.sum()
    return result


def _by_time_of_day(history: History) -> Floats:
    """(models, BINS): arrivals by time of day."""
    last = (history.origin_minute // MINUTES_OF_TEN) % BINS
    bins = history.ten_minutes.shape[1]
    missing = -bins % BINS
    padded = np.pad(history.ten_minutes.astype(np.float32), ((0, 0), (missing, 0)))
    days = padded.reshape(history.models, (bins + missing) // BINS, BINS).sum(
        axis=1, dtype=np.float64
    )
    return np.roll(days, last, axis=1)


def _smooth(values: Floats) -> Floats:
    """Circular smoothing over 50 minutes along the last axis."""
    half = len(_KERNEL) // 2
    parts = [weight * np.roll(values, at - half, axis=-1) for at, weight in enumerate(_KERNEL)]
    result: Floats = np.sum(parts, axis=0)
    return result


def _known_days(history: History) -> float:
    if not history.models:
        return 0.0
    known = history.origin_minute - int(history.since_minute.min())
    return float(min(known / MINUTES_OF_DAY, history.ten_minutes.shape[1] / BINS))


HALF_LIVES_MIN: Final = (3.0, 15.0, 90.0, 720.0)
NOISE_WINDOWS_MIN: Final = (1, 10, 60)
_LAGS_MIN: Final = (*range(67, 1408, 67),)
"""Past origins, as minutes before the origin. Coprime to an hour, so that they fall on all minutes
of the hour; within a day, so that the day before each one is known."""
_TEMPERATURE: Final = 2.0
"""Divides sums of losses before they become weights: past windows are not independent."""
_SHARED_ERRORS: Final = 6.0
"""Number of past windows at which a model's own noise weighs as much as the shared noise."""
_OPTIMISM: Final = np.array([1.0, 1.3, 2.0])
"""Per noise window: squared errors of forecasts over those in the past that gave the weights.
Measured on the first part of two traces: research/docs/forecasting.md."""
_MIN_PAST_LOAD: Final = 0.1


@dataclass(frozen=True, slots=True)
class SmoothingFit:
    """Weights and noise by past errors."""

    weights: Floats
    """(models, noise windows, experts), with sum 1 over experts."""
    size: Floats
    """(models, noise windows): size of the negative binomial."""


def fit_smoothing(history: History, profiles: Floats, period_min: Floats) -> SmoothingFit:
    """Weight the experts by their loss at past origins, and measure the noise of the mixture."""
    lags = [lag for lag in _LAGS_MIN if lag <= history.minutes.shape[1] // 2] or [60]
    windows = np.asarray(NOISE_WINDOWS_MIN, dtype=np.float64)
    means = _means(history, profiles, period_min, lags, windows)
    observed = _outcomes(history, lags)
    is_known = (history.known_minutes[:, None] >= np.asarray(lags) + 60).astype(np.float64)
    size = _size(means.mean(axis=-1), observed, is_known[..., None])[:, None, :, None]
    loss = (_loss(means, observed[..., None], size) * is_known[..., None, None]).sum(axis=1)
    weights = np.exp(-(loss - loss.min(axis=-1, keepdims=True)) / _TEMPERATURE)
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = (means * weights[:, None]).sum(axis=-1)
    return SmoothingFit(weights=weights, size=_size(mixed, observed, is_known[..., None]))


def smoothed_means(
    history: History, profiles: Floats, period_min: Floats, fit: SmoothingFit, windows_min: Floats
) -> Floats:
    """(models, windows): means of the mixture."""
    means = _means(history, profiles, period_min, [0], windows_min)[:, 0]
    result: Floats = (means * _interpolate(fit.weights, windows_min)).sum(axis=-1)
    return result


def smoothed_sizes(fit: SmoothingFit, windows_min: Floats) -> Floats:
    """(models, windows): size of the negative binomial around the means."""
    return np.exp(_interpolate(np.log(fit.size), windows_min))


def _means(
    history: History, profiles: Floats, period_min: Floats, lags: list[int], windows_min: Floats
) -> Floats:
    """(models, lags, windows, experts): expected arrivals as of `lag` minutes before the origin.

    Experts: an average per half-life, the long-run mean, the model's period, the day before. The
    last two use the long-run mean where they are unknown.
    """
    averages = _averages(history, profiles, lags, windows_min)
    recurring = recurring_means(history, period_min, lags, windows_min)
    recurring = np.where(np.isfinite(recurring), recurring, averages[..., -1:])
    return np.concatenate([averages, recurring], axis=-1)


def _averages(history: History, profiles: Floats, lags: list[int], windows_min: Floats) -> Floats:
    """(models, lags, windows, averages): arrivals, corrected for the window's time of day."""
    levels = _levels(history, lags)
    now = history.origin_s / 60
    spans = np.stack(
        [span_weights(now - lag, each) for lag in lags for each in windows_min], axis=1
    )
    backs = [decay_weights(now - lag, each) for lag in lags for each in HALF_LIVES_MIN]
    ahead = (profiles @ spans).reshape(history.models, len(lags), windows_min.size, 1)
    behind = (profiles @ np.stack(backs, axis=1)).reshape(
        history.models, len(lags), 1, len(HALF_LIVES_MIN)
    )
    behind = np.concatenate([behind, np.ones((*behind.shape[:3], 1))], axis=-1)
    factor = ahead / np.maximum(behind, _MIN_PAST_LOAD)
    return levels[:, :, None] * factor * windows_min[:, None]


def _levels(history: History, lags: list[int]) -> Floats:
    """(models, lags, averages): arrivals per minute; the last one is the long-run mean."""
    bins = history.minutes.shape[1]
    age = np.arange(bins - 1, -1, -1.0)[:, None, None] - np.asarray(lags)[:, None]
    half = np.asarray(HALF_LIVES_MIN)
    decay = np.where(age >= 0, np.exp2(-np.maximum(age, 0) / half), 0) * -np.expm1(
        -np.log(2) / half
    )
    counts = history.minutes.astype(np.float32)
    sums = counts @ decay.reshape(bins, -1).astype(np.float32)
    known = np.maximum(history.known_minutes[:, None] - np.asarray(lags), 1.0)[..., None]
    covered = -np.expm1(-np.log(2) * known / half)
    recent = sums.reshape(history.models, len(lags), half.size) / covered
    return np.concatenate([recent, _long_run(history, lags)[..., None]], axis=-1)


def _long_run(history: History, lags: list[int]) -> Floats:
    """(models, lags): mean arrivals per minute over all counts before the lag."""
    ten_minutes = history.ten_minutes
    last = max(lags) // 10 + 1
    early = ten_minutes[:, :-last].sum(axis=1, dtype=np.float64)
    late = np.cumsum(ten_minutes[:, -last:], axis=1, dtype=np.float64)
    at = [last - lag // 10 - 1 for lag in lags]
    known = np.minimum(history.origin_minute - history.since_minute, ten_minutes.shape[1] * 10)
    spans = np.maximum(known[:, None] - np.asarray(lags), 60.0)
    result: Floats = (early[:, None] + late[:, at]) / spans
    return result


def _outcomes(history: History, lags: list[int]) -> Floats:
    """(models, lags, noise windows): arrivals in windows that began `lag` minutes ago."""
    bins = history.minutes.shape[1]
    recent = history.minutes[:, max(bins - max(lags), 0) :]
    total = np.cumsum(recent, axis=1, dtype=np.float64)
    total = np.pad(total, ((0, 0), (1, 0)))
    starts = np.maximum(total.shape[1] - 1 - np.asarray(lags), 0)
    ends = np.minimum(starts[:, None] + np.asarray(NOISE_WINDOWS_MIN), total.shape[1] - 1)
    return total[:, ends] - total[:, starts][..., None]


def _loss(mean: Floats, observed: Floats, size: Floats) -> Floats:
    """Log loss of a negative binomial, without terms that do not depend on the mean."""
    mean = np.maximum(mean, 1e-4)
    return (observed + size) * np.log1p(mean / size) - observed * np.log(mean)


def _size(mean: Floats, observed: Floats, is_known: Floats) -> Floats:
    squared = ((observed - mean) ** 2 * is_known).sum(axis=1)
    total, weight = (mean * is_known).sum(axis=1), (mean**2 * is_known).sum(axis=1)
    lags = np.maximum(is_known.sum(axis=1), 1.0)
    # Each model counts once for the shared noise, whatever its volume.
    relative = np.maximum(squared - total, 0.0) / np.maximum(weight, 1e-9)
    shared = np.median(np.clip(relative, 1e-3, 50.0), axis=0) if mean.shape[0] else 1.0
    added = _SHARED_ERRORS * weight / lags
    excess = _OPTIMISM * np.maximum(squared - total, 0.0) + added * shared
    result: Floats = np.clip(
        (weight + added + 1e-12) / np.maximum(excess, 1e-12),
        negative_binomial.MIN_SIZE,
        negative_binomial.MAX_SIZE,
    )
    return result


def _interpolate(values: Floats, windows_min: Floats) -> Floats:
    """Interpolates values at noise windows (axis 1) over the logarithm of the window."""
    grid = np.log(NOISE_WINDOWS_MIN)
    at = np.clip(np.log(windows_min), grid[0], grid[-1])
    right = np.clip(np.searchsorted(grid, at), 1, grid.size - 1)
    share = (at - grid[right - 1]) / (grid[right] - grid[right - 1])
    shape = (1, -1) + (1,) * (values.ndim - 2)
    share = share.reshape(shape)
    result: Floats = values[:, right - 1] * (1 - share) + values[:, right] * share
    return result
