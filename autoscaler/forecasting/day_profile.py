"""Relative load by time of day: per model, shrunk towards the profile that all models share.

It defines *operational time*: time stretched so that all arrivals together are uniform over the
day. In operational time, a quiet night does not lengthen the gap between two arrivals.
"""

from typing import Final

import numpy as np

from autoscaler.forecasting.history import MINUTES_OF_DAY, MINUTES_OF_TEN, Floats, History

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
    """Convert times to operational time, both in minutes; a day has 1440 minutes in both."""
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
