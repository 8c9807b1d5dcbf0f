"""Our forecasts: one function per arrival pattern; `forecast_by_pattern` picks one per model.

All have the same shape: (history, fit, horizon) to forecast. `forecast_by_pattern` is the one to
use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.arrival_patterns import ArrivalPattern
from autoscaler.forecasting.exponential_smoothing import level_means, level_sizes
from autoscaler.forecasting.history import Booleans, Floats, Forecast, ForecastHorizon, History
from autoscaler.forecasting.interarrival import p_arrival_by_gaps
from autoscaler.forecasting.log_odds import pool
from autoscaler.forecasting.seasonal import seasonal

if TYPE_CHECKING:
    from autoscaler.forecasting.fitting import Fit

_CHANGE_P: Final = 0.999
_CHANGE_MIN: Final = 5
_NEW_LEVEL_SHARE: Final = 0.3
"""How much the shortest average counts after a change, in windows up to `_NEW_LEVEL_MIN`."""
_NEW_LEVEL_MIN: Final = 10.0
_FEW: Final = 4.0
"""Means below it get their noise from P(arrival) where that is known better."""
_AT_ONCE: Final = 512
"""Models forecast together: memory that one part gave back the next one takes, instead of new
pages (`benchmarks.forecasting`: ten thousand at once take twice the time)."""
_GAPS_SHARE: Final = 0.5
"""Weight of gaps against levels in the log-odds of P(arrival) of a sparse model."""


def sparse(history: History, fit: Fit, question: ForecastHorizon) -> Forecast:
    """P(arrival) by the gaps between arrivals, counts from the levels."""
    windows = question.windows_min
    mean, _ = _levels(history, fit, windows)
    mean = _within(mean, question)
    by_gaps = p_arrival_by_gaps(history, fit.shared.profile, fit.shared.gaps, windows)
    by_level = negative_binomial.p_some(mean, level_sizes(fit.levels, windows))
    p_arrival = np.maximum.accumulate(pool(by_gaps, by_level, _GAPS_SHARE), axis=1)
    mean = np.maximum(mean, p_arrival)
    size = negative_binomial.size_of_zeros(mean, p_arrival)
    return _answer(mean, size, question, p_arrival)


def steady(history: History, fit: Fit, question: ForecastHorizon) -> Forecast:
    """Exponential averages, weighed by how well they did, with the noise they had."""
    windows = question.windows_min
    mean, _ = _levels(history, fit, windows)
    return _answer(mean, level_sizes(fit.levels, windows), question)


def bursty(history: History, fit: Fit, question: ForecastHorizon) -> Forecast:
    """As `steady`; but once the level of the last minutes is another, it counts at once."""
    windows = question.windows_min
    mean, each = _levels(history, fit, windows)
    share = _NEW_LEVEL_SHARE * np.minimum(1.0, _NEW_LEVEL_MIN / windows)
    share = share * has_changed(history, fit)[:, None]
    mean = (1 - share) * mean + share * np.maximum(each[..., 0], _rise(history) * windows)
    return _answer(mean, level_sizes(fit.levels, windows), question)


def periodic(history: History, fit: Fit, question: ForecastHorizon) -> Forecast:
    """What came at the same phase of earlier cycles; without whole cycles as `steady`."""
    windows = question.windows_min
    fallback = steady(history, fit, question)
    found = seasonal(history, fit.behaviour.period_min, windows)
    mean = np.where(found.mean < _FEW, found.mean, fallback.mean)
    mean = _within(mean, question)
    is_few = found.mean < _FEW
    by_zeros = negative_binomial.size_of_zeros(mean, found.p_arrival)
    size = np.where(is_few, by_zeros, level_sizes(fit.levels, windows))
    p_arrival = np.where(is_few, found.p_arrival, negative_binomial.p_some(mean, size))
    answer = _answer(mean, size, question, p_arrival)
    is_known = found.is_known & (fit.behaviour.period_min > 0)[:, None]
    return Forecast(
        mean=np.where(is_known, answer.mean, fallback.mean),
        quantiles=np.where(is_known[..., None], answer.quantiles, fallback.quantiles),
        p_arrival=np.maximum.accumulate(
            np.where(is_known, answer.p_arrival, fallback.p_arrival), axis=1
        ),
    )


def forecast_by_pattern(history: History, fit: Fit, question: ForecastHorizon) -> Forecast:
    """Each model by the forecast of its type."""
    shape = (history.models, len(question.windows_s))
    mean, p_arrival = np.zeros(shape), np.zeros(shape)
    quantiles = np.zeros((*shape, len(question.probabilities)))
    for kind, method in _OF_KIND.items():
        of_kind = np.flatnonzero(fit.behaviour.kind == kind)
        for start in range(0, of_kind.size, _AT_ONCE):
            rows = of_kind[start : start + _AT_ONCE]
            part = method(history.take(rows), fit.take(rows), question)
            mean[rows], p_arrival[rows] = part.mean, part.p_arrival
            quantiles[rows] = part.quantiles
    return Forecast(mean=mean, quantiles=quantiles, p_arrival=p_arrival)


_OF_KIND: Final = {
    ArrivalPattern.DEAD: sparse,
    ArrivalPattern.SPARSE: sparse,
    ArrivalPattern.PERIODIC: periodic,
    ArrivalPattern.STEADY: steady,
    ArrivalPattern.BURSTY: bursty,
}


def has_changed(history: History, fit: Fit) -> Booleans:
    """(models,): came in the last minutes more than was to be expected just before them?

    More than the `_CHANGE_P` quantile of what would have been forecast then: a stream that is
    always uneven, or peaks at this time anyway, must change more to be called changed.
    """
    span = np.array([float(_CHANGE_MIN)])
    if history.minutes.shape[1] <= _CHANGE_MIN:
        return np.zeros(history.models, dtype=bool)
    expected, _ = level_means(
        history, fit.profiles, fit.behaviour.period_min, fit.levels, span, lag_min=_CHANGE_MIN
    )
    size = level_sizes(fit.levels, span)
    most = negative_binomial.quantiles(np.maximum(expected, 1e-9), size, (_CHANGE_P,))
    came = history.minutes[:, -_CHANGE_MIN:-1].sum(axis=1) + history.recent
    result: Booleans = came > most[:, 0, 0]
    return result


def _rise(history: History) -> Floats:
    """(models, 1): arrivals per minute now, where the last whole minute does not show them yet."""
    last = history.minutes[:, -1].astype(np.float64)
    return np.where(history.recent > last, history.recent, 0.0)[:, None]


def _levels(history: History, fit: Fit, windows_min: Floats) -> tuple[Floats, Floats]:
    return level_means(history, fit.profiles, fit.behaviour.period_min, fit.levels, windows_min)


def _within(mean: Floats, question: ForecastHorizon) -> Floats:
    """Means that are possible: at least a very rare arrival, at most what the question allows."""
    most = question.most_per_s * np.asarray(question.windows_s)
    return np.clip(mean, 1e-9, most)


def _answer(
    mean: Floats, size: Floats, question: ForecastHorizon, p_arrival: Floats | None = None
) -> Forecast:
    """Counts by mean and size; P(arrival) by them, too, unless it is known better."""
    mean = np.maximum.accumulate(_within(mean, question), axis=1)
    quantiles = negative_binomial.quantiles(mean, size, question.probabilities)
    if p_arrival is None:
        p_arrival = negative_binomial.p_some(mean, size)
    p_arrival = np.clip(np.maximum.accumulate(p_arrival, axis=1), 0.0, 1.0)
    is_none = (1 - p_arrival)[..., None] >= np.asarray(question.probabilities)
    quantiles = np.where(is_none, 0.0, np.maximum(quantiles, 1.0))
    return Forecast(mean=mean, quantiles=quantiles, p_arrival=p_arrival)
