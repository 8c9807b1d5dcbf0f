"""Hybrid histogram: keep-alive by the histogram of idle times, with its fallbacks.

Source: Shahrad et al., Serverless in the Wild, ATC 2020, section 4.2. One-minute bins over four
hours; warm from the 5th percentile of idle times (less 10 %) to the 99th (plus 10 %). If the
histogram is not representative (coefficient of variation of its bins below 2): warm for four hours.
If most idle times are beyond it: a time-series forecast of the next one, plus and minus 15 %; the
paper fits ARIMA, this module an autoregression of order 1, since no ARIMA library is a dependency.

The policy makes decisions, not probabilities. This module translates them: while warm, P(arrival)
is the share of idle times that end in the window among those longer than the current one; otherwise
0. Counts follow the mean rate. Idle times are those between the last 128 minutes with arrivals.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.forecasts import Fit
from autoscaler.forecasting.history import Booleans, Floats, Forecast, ForecastHorizon, History

_MARGIN: Final = 0.10
_NEXT_MARGIN: Final = 0.15
_MIN_VARIATION: Final = 2.0
_MAX_BEYOND_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class IdleTimeHistogram:
    """Parameters, with the paper's values."""

    range_min: int = 240
    head: float = 5.0
    """Percentile of idle times at which the warm window starts."""
    tail: float = 99.0


_PAPER: Final = IdleTimeHistogram()


def hybrid_histogram(history: History, _fit: Fit, horizon: ForecastHorizon) -> Forecast:
    idle = history.gaps_min
    age = np.minimum(history.age_minutes, 1e9)[:, None]
    windows = horizon.windows_min
    low, high = warm_window(history)
    is_warm = (age + windows >= low[:, None]) & (age <= high[:, None])
    ends = [_share_ending(idle, age, each) for each in windows]
    p_arrival = np.where(is_warm, np.stack(ends, axis=1), 0.0)
    rate = history.minutes.sum(axis=1, dtype=np.float64) / history.known_minutes
    mean = np.maximum(rate[:, None] * windows, -np.log1p(-np.minimum(p_arrival, 0.999)))
    mean = horizon.clip_means(mean)
    size = negative_binomial.size_of_zeros(mean, p_arrival)
    return Forecast(
        mean=mean,
        quantiles=negative_binomial.quantiles(mean, size, horizon.probabilities),
        p_arrival=p_arrival,
    )


def warm_window(history: History, params: IdleTimeHistogram = _PAPER) -> tuple[Floats, Floats]:
    """(models,): start and end of the warm window, in minutes since the last arrival."""
    idle = history.gaps_min
    inside = np.where(idle <= params.range_min, idle, np.nan)
    count = np.isfinite(idle).sum(axis=1)
    has_some: Booleans = np.asarray(np.isfinite(inside).any(axis=1))
    safe: Floats = np.where(has_some[:, None], inside, 0.0)
    low = np.nanpercentile(safe, params.head, axis=1) * (1 - _MARGIN)
    high = np.nanpercentile(safe, params.tail, axis=1) * (1 + _MARGIN)
    is_beyond = (idle > params.range_min).sum(axis=1) > _MAX_BEYOND_SHARE * np.maximum(count, 1)
    is_unrepresentative = ~is_beyond & (~has_some | (_variation(inside, params) < _MIN_VARIATION))
    expected = _next_idle(idle)
    low = np.select([is_beyond, is_unrepresentative], [expected * (1 - _NEXT_MARGIN), 0.0], low)
    high = np.select(
        [is_beyond, is_unrepresentative], [expected * (1 + _NEXT_MARGIN), params.range_min], high
    )
    return low, high


def _variation(inside: Floats, params: IdleTimeHistogram) -> Floats:
    """(models,): coefficient of variation of the histogram's bins."""
    rows, columns = np.nonzero(np.isfinite(inside))
    bins = np.zeros((inside.shape[0], params.range_min + 1))
    np.add.at(bins, (rows, inside[rows, columns].astype(np.int64)), 1.0)
    mean = bins.mean(axis=1)
    variation: Floats = bins.std(axis=1) / np.maximum(mean, 1e-9)
    return variation


def _next_idle(idle: Floats) -> Floats:
    """(models,): next idle time by an autoregression of order 1."""
    is_known: Booleans = np.isfinite(idle)
    count = np.maximum(is_known.sum(axis=1), 1)
    mean = np.where(is_known, idle, 0.0).sum(axis=1) / count
    off = np.where(is_known, idle - mean[:, None], 0.0)
    slope = (off[:, 1:] * off[:, :-1]).sum(axis=1) / np.maximum((off**2).sum(axis=1), 1e-9)
    result: Floats = np.maximum(mean + np.clip(slope, -0.99, 0.99) * off[:, -1], 0.0)
    return result


def _share_ending(idle: Floats, age: Floats, length: float) -> Floats:
    """(models,): of the idle times longer than `age`, the share that ends within the window."""
    longer = (idle > age).sum(axis=1)
    ending = ((idle > age) & (idle <= age + length)).sum(axis=1)
    result: Floats = ending / np.maximum(longer, 1)
    return result
