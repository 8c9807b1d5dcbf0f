"""All forecast methods by name."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.forecasts import Fit, forecast_by_pattern, periodic, sparse, steady
from autoscaler.forecasting.history import (
    MINUTES_OF_DAY,
    MINUTES_OF_TEN,
    Floats,
    Forecast,
    ForecastHorizon,
    History,
)
from autoscaler.forecasting.smoothing import BINS
from research.loading.idle_time_histogram import hybrid_histogram

# Baselines are negative binomials as in `forecasts`, whose size follows from their past errors: the
# back-test compares means, not a forecast with noise and one without.


Means: TypeAlias = Callable[[History, tuple[int, ...], Floats], Floats]
"""(history, lags, windows, both in minutes) to (models, lags, windows): means forecast as of `lag`
minutes before the origin; a lag of 0 is now."""

LAGS_MIN: Final = (60, 120, 180, 360, 540, 720, 1080, 1380)

HALF_LIFE_MIN: Final = 30.0
_HARMONICS: Final = 10
_LEVEL: Final = 0.2
_TREND: Final = 0.01
_SEASON: Final = 0.1
_DAMPING: Final = 0.98


def size_of_moments(mean: Floats, squared_error: Floats, weight: Floats) -> Floats:
    """Size from sums over past forecasts: of means, of errors^2 and of means^2 (`weight`).

    Method of moments for one size with changing means (Cameron and Trivedi 2013, section 3.3).
    """
    excess = np.maximum(squared_error - mean, 0.0)
    size = weight / np.maximum(excess, 1e-12)
    return np.clip(size, negative_binomial.MIN_SIZE, negative_binomial.MAX_SIZE)


def with_measured_noise(means: Means) -> Callable[[History, Fit, ForecastHorizon], Forecast]:
    """A forecast method with these means, and noise measured from their past errors."""

    def forecast(history: History, _fit: Fit, horizon: ForecastHorizon) -> Forecast:
        windows = np.maximum(horizon.windows_min, 1.0)
        found = np.clip(means(history, (0, *LAGS_MIN), windows), 0.0, None)
        past, observed = found[:, 1:], arrivals(history, LAGS_MIN, np.minimum(windows, LAGS_MIN[0]))
        weight, total = (past**2).sum(axis=1), past.sum(axis=1)
        squared = ((observed - past) ** 2).sum(axis=1)
        size = size_of_moments(total, squared, np.maximum(weight, 1e-6))
        mean = horizon.clip_means(found[:, 0] * (horizon.windows_min / windows))
        return Forecast(
            mean=mean,
            quantiles=negative_binomial.quantiles(mean, size, horizon.probabilities),
            p_arrival=negative_binomial.p_at_least_one(mean, size),
        )

    return forecast


def arrivals(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    """(models, lags, windows): arrivals in windows that begin `lag` minutes before the end.

    The end is that of the history; minutes outside the history count as zero.
    """
    bins = history.minutes.shape[1]
    total = np.pad(np.cumsum(history.minutes, axis=1, dtype=np.float64), ((0, 0), (1, 0)))
    starts = bins - np.asarray(lags)[:, None]
    ends = starts + np.ceil(windows_min).astype(np.int64)
    result: Floats = total[:, np.clip(ends, 0, bins)] - total[:, np.clip(starts, 0, bins)]
    return result


def _last_window(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    whole = np.ceil(windows_min).astype(np.int64)
    columns = [
        arrivals(history, tuple(lag + int(each) for lag in lags), np.array([each]))[..., 0]
        for each in whole
    ]
    return np.stack(columns, axis=-1)


def _same_window_yesterday(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    return arrivals(history, tuple(lag + MINUTES_OF_DAY for lag in lags), windows_min)


def _exponential_average(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    age = np.arange(history.minutes.shape[1] - 1, -1, -1.0)[:, None] - np.asarray(lags)
    decay = np.where(age >= 0, np.exp2(-np.maximum(age, 0) / HALF_LIFE_MIN), 0.0)
    decay *= 1 - 2 ** (-1 / HALF_LIFE_MIN)
    levels = history.minutes.astype(np.float32) @ decay.astype(np.float32)
    result: Floats = levels[..., None].astype(np.float64) * windows_min
    return result


naive: Final = with_measured_noise(_last_window)
seasonal_naive: Final = with_measured_noise(_same_window_yesterday)
ewma: Final = with_measured_noise(_exponential_average)


def _extrapolated(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    """Quadratic trend plus the strongest harmonics (IceBreaker, Roy et al. 2022, section 4)."""
    bins = history.minutes.shape[1]
    length = bins // 2
    result = np.empty((history.models, len(lags), windows_min.size))
    for at, lag in enumerate(lags):
        end = max(bins - lag, length)
        past = history.minutes[:, end - length : end].astype(np.float64)
        total = np.cumsum(_extrapolate(past, int(np.ceil(windows_min.max()))), axis=1)
        result[:, at] = total[:, np.ceil(windows_min).astype(np.int64) - 1]
    return result


def _extrapolate(past: Floats, steps: int) -> Floats:
    """(models, steps): extrapolation of the past, not negative."""
    length = past.shape[1]
    time = np.arange(length + steps) / length
    powers = np.stack([time**0, time, time**2], axis=1)
    solved = past @ np.linalg.pinv(powers[:length]).T
    spectrum = np.fft.rfft(past - solved @ powers[:length].T, axis=1)
    strength = np.abs(spectrum)
    kept = min(_HARMONICS, strength.shape[1])
    weakest = np.partition(strength, -kept, axis=1)[:, -kept, None]
    waves = np.fft.irfft(np.where(strength >= weakest, spectrum, 0), n=length, axis=1)
    ahead = np.arange(steps) % length  # the harmonics repeat after the length of the past
    result: Floats = np.maximum(solved @ powers[length:].T + waves[:, ahead], 0.0)
    return result


fft: Final = with_measured_noise(_extrapolated)


def _damped_trend_and_day(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    """Holt-Winters on ten minutes, additive season of a day, damped trend.

    Hyndman and Athanasopoulos 2021, sections 8.3 and 8.4; additive, because most counts are zero.
    """
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


holt_winters: Final = with_measured_noise(_damped_trend_and_day)


Method: TypeAlias = Callable[[History, Fit, ForecastHorizon], Forecast]

METHODS: Final[Mapping[str, Method]] = {
    "typed": forecast_by_pattern,
    "sparse": sparse,
    "steady": steady,
    "periodic": periodic,
    "naive": naive,
    "seasonal-naive": seasonal_naive,
    "ewma": ewma,
    "holt-winters": holt_winters,
    "hybrid-histogram": hybrid_histogram,
    "fft": fft,
}
"""`typed` is the default; the next three are its parts, applied to all models; the rest are
baselines."""
