"""P(arrival) by the recency of a model's arrivals, by their gaps, and by bursts at intervals.

One logistic regression for all models, fitted to the last two days: on the logarithms of the time
since the last arrival and of the share of active minutes over several half-lives, and on their
products; it is shrunk towards odds that fall with the time since the last arrival, until models
have returned from silences often enough to tell how long these last.
It reacts faster to the end of a burst than the forecasts by pattern, which model days and periods.
`p_minute` combines both by their log-odds.
"""

from typing import Final

import numpy as np

from autoscaler.forecasting.history import (
    NEVER,
    Booleans,
    Floats,
    Forecast,
    ForecastHorizon,
    History,
    Integers,
)
from autoscaler.forecasting.smoothing import operational_minutes

_HALF_LIVES_MIN: Final = np.array([3.0, 10.0, 30.0, 120.0, 600.0, 2880.0])
_MIN_SHARE: Final = 1e-4
_MAX_AGE_MIN: Final = 1e5
_MAX_MODELS: Final = 200
"""Models in the training set, spread evenly over all."""
_MAX_MINUTES: Final = 80_000
"""With more minutes than this, every `_EVERY_MIN`-th minute is in the training set."""
_EVERY_MIN: Final = 7
"""Coprime to an hour, so that all minutes of the hour are in the set."""
_PRIOR_AGE: Final = -1.0
"""Prior weight of the age: odds of one over the minutes since the last arrival."""
_RIDGE: Final = 1.0
_MIN_SPREAD: Final = 0.3
"""Features are logarithms: one that hardly varied in the past must not gain a large weight, since
it may vary later."""
_STEPS: Final = 12
_MAX_P: Final = 1 - 1e-12
_WEIGHT: Final = 0.5
"""Weight of recency against the forecasts: 0.35 to 0.65 perform alike on GenTD26, days 19 to 23."""
_PRIOR_RETURNS: Final = 3.0
"""Arrivals after silences, of all models, at which the fit weighs as much as the prior. Minutes do
not count: a single silence has many of them, all alike."""
_PRIOR_GAPS: Final = 4.0
"""Gaps of a model at which its forecast has half of its weight. Without gaps its rhythm is unknown,
and only recency counts."""


def fit_recency(history: History) -> Floats:
    """Weights of the features, the constant last; fitted to the whole minutes of a history."""
    stride = max(1, history.models // _MAX_MODELS)
    known = history.known_minutes[::stride].astype(np.int64)
    is_active = np.asarray(history.minutes[::stride, -known.max(initial=1) :], dtype=np.uint32) > 0
    features, arrived = _training_set(
        is_active, history.active_minutes[::stride], known, history.origin_minute
    )
    return _regress(features, arrived, _returns(is_active))


def p_recent(history: History, recency: Floats) -> Floats:
    """(models,): P(arrival in the minute from the origin) by recency alone."""
    features = _features(_active_shares(history), history.age_minutes)
    log_odds = np.clip(features @ recency, -30.0, 30.0)
    return 1 / (1 + np.exp(-log_odds))


def p_minute(
    history: History,
    recency: Floats,
    forecast: Forecast,
    horizon: ForecastHorizon,
    is_periodic: Booleans,
) -> Floats:
    """(models,): P(arrival in the minute from the origin) by recency and forecast.

    The forecast of each window gives the probability for a minute of constant hazard. The mean over
    windows changes less from minute to minute than the one-minute forecast, which would preload
    several times as often for as many cold starts. Periodic models use the forecast alone, the
    maximum over windows: the time since the last arrival says little about them, and they must be
    warm before the next arrival. Until a model's rhythm is known recency has more weight.
    """
    minutes = np.maximum(horizon.windows_min, 1.0)
    by_hazard = 1 - (1 - np.minimum(forecast.p_arrival, _MAX_P)) ** (1 / minutes)
    gaps = np.isfinite(history.gaps_min).sum(axis=1)
    weight = 1 - (1 - _WEIGHT) * gaps / (gaps + _PRIOR_GAPS)
    pooled = pool_log_odds(p_recent(history, recency), by_hazard.mean(axis=1), weight)
    return np.where(is_periodic, (forecast.p_arrival / minutes).max(axis=1), pooled)


def _features(levels: Floats, age_min: Floats) -> Floats:
    """(..., features) of levels (..., half-lives) and ages (...)."""
    age = np.log(np.minimum(age_min, _MAX_AGE_MIN) + 0.5)[..., None]
    level = np.log(levels + _MIN_SHARE)
    return np.concatenate([age, age**2, level, level * age, np.ones_like(age)], axis=-1)


def _active_shares(history: History) -> Floats:
    """(models, half-lives): the share of active minutes, as exponential averages."""
    ago = np.maximum(history.origin_minute - 1 - history.active_minutes, 0).astype(np.float32)
    ago[history.active_minutes == NEVER] = np.inf
    levels = [
        (1 - np.exp2(-1 / each)) * np.exp2(ago * np.float32(-1 / each)).sum(axis=1)
        for each in _HALF_LIVES_MIN
    ]
    return np.stack(levels, axis=1)


def _training_set(
    is_active: Booleans, active: Integers, known: Integers, origin: int
) -> tuple[Floats, Floats]:
    """Features (rows, features) before each known past minute, and whether a request arrived."""
    models, minutes = is_active.shape
    every = 1 if known.sum() <= _MAX_MINUTES else _EVERY_MIN
    start = origin - minutes
    before = np.where((active != NEVER) & (active < start), active, NEVER).max(axis=1, initial=-1)
    last = np.where(before == NEVER, -np.inf, before.astype(np.float64))
    decay = np.exp2(-1 / _HALF_LIVES_MIN)
    levels, ages = np.zeros((models, decay.size)), []
    kept: list[Floats] = []
    for minute in range(minutes):
        if minute % every == 0:
            ages.append(start + minute - last - 0.5)
            kept.append(levels)
        levels = decay * levels + (1 - decay) * is_active[:, minute, None]
        last = np.where(is_active[:, minute], start + minute, last)
    # Without the first minute of a model, which may be known only because of an arrival in it.
    is_known = np.arange(0, minutes, every) > minutes - known[:, None]
    features = _features(np.stack(kept, axis=1), np.stack(ages, axis=1))
    return features[is_known], is_active[:, ::every][is_known].astype(np.float64)


def _returns(is_active: Booleans) -> int:
    """Number of arrivals after at least one minute without."""
    return int((is_active[:, 1:] & ~is_active[:, :-1]).sum())


def _regress(features: Floats, arrived: Floats, returns: int) -> Floats:
    """Logistic regression by Newton's method, with a ridge on features of unit spread.

    The weights are near the prior while there are few rows or returns.
    """
    prior = np.zeros(features.shape[1])
    prior[0] = _PRIOR_AGE
    if not arrived.size:
        return prior
    mean, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.maximum(spread, _MIN_SPREAD)
    mean[-1], spread[-1] = 0.0, 1.0
    scaled = (features - mean) / spread
    # Starts at even odds, where Newton's method converges.
    fitted = -prior * spread
    fitted[-1] = -mean @ prior
    ridge = _RIDGE * np.eye(fitted.size)
    for _ in range(_STEPS):
        log_odds = features @ prior + scaled @ fitted
        p = 1 / (1 + np.exp(-np.clip(log_odds, -30.0, 30.0)))
        gradient = scaled.T @ (arrived - p) - ridge @ fitted
        hessian = (scaled * (p * (1 - p))[:, None]).T @ scaled + ridge
        fitted = fitted + np.linalg.solve(hessian, gradient)
    change = fitted / spread
    change[-1] -= change[:-1] @ mean[:-1]
    result: Floats = prior + change * returns / (returns + _PRIOR_RETURNS)
    return result


def pool_log_odds(one: Floats, other: Floats, weight: Floats | float) -> Floats:
    """The weighted mean of the log-odds of two probabilities (Satopaa et al. 2014)."""
    odds = weight * _log_odds(one) + (1 - weight) * _log_odds(other)
    return 1 / (1 + np.exp(-odds))


def _log_odds(p: Floats) -> Floats:
    bounded = np.clip(p, 1e-6, 1 - 1e-6)
    return np.log(bounded / (1 - bounded))


_GAPS_BEFORE: Final = 3.0
"""Weight of the Lomax hazard, in gaps of the model's own that are longer than the current one."""
_FADE: Final = 0.985
"""Weight of a gap over that of the next one: the last 50 gaps have half of the weight."""
QUIET_S: Final = 5
_SIMILAR_SHARE: Final = 0.25
_SIMILAR_S: Final = 2.0
"""Intervals are similar if they differ from the last one by less than this share or time."""
_OVERDUE_RATIO: Final = 1.5
"""Without a start after this many intervals the bursts are over."""


def p_arrival_by_interarrival(history: History, profile: Floats, windows_min: Floats) -> Floats:
    """(models, windows): P(arrival) by the gaps between arrivals, given the age of the last.

    The empirical hazard of the model's gaps, shrunk towards that of a Lomax distribution with shape
    1 and the mean gap as its scale. Gaps are in operational minutes (`profile`: the day profile
    that all models share). Source: the histogram of idle times of Shahrad et al. 2020, section 4.2,
    here conditioned on the time since the last arrival.
    """
    gaps, age = _gaps(history, profile), _age(history, profile)[:, None]
    start = history.origin_s / 60
    ends = operational_minutes(start + windows_min, profile)
    lengths = ends - operational_minutes(np.array([start]), profile)
    weights = _FADE ** np.arange(gaps.shape[1] - 1, -1, -1.0)
    at_risk = ((gaps > age) * weights).sum(axis=1)
    prior_p = lengths / (_mean_gap(gaps, age) + age + lengths)
    result = np.empty((history.models, windows_min.size))
    for column, length in enumerate(lengths):
        hits = (((gaps > age) & (gaps <= age + length)) * weights).sum(axis=1)
        result[:, column] = (hits + _GAPS_BEFORE * prior_p[:, column]) / (at_risk + _GAPS_BEFORE)
    return np.clip(np.maximum.accumulate(result, axis=1), 0.0, 1.0)


def _gaps(history: History, profile: Floats) -> Floats:
    """(models, k - 1): gaps between minutes with arrivals; padded with NaN in front."""
    active = history.active_minutes
    if active.shape[1] < 2:
        return np.full((history.models, 1), np.nan)
    times = operational_minutes(active + 0.5, profile)
    is_gap = active[:, :-1] != NEVER
    return np.where(is_gap, np.diff(times, axis=1), np.nan)


def _age(history: History, profile: Floats) -> Floats:
    """(models,): operational minutes since the last arrival, or since the counts begin."""
    active = history.active_minutes
    last = active[:, -1] if active.shape[1] else np.full(history.models, NEVER)
    since = np.where(last == NEVER, history.since_minute, last + 0.5).astype(np.float64)
    now = operational_minutes(np.array([history.origin_s / 60]), profile)
    return np.maximum(now - operational_minutes(since, profile), 0.0)


def _mean_gap(gaps: Floats, age: Floats) -> Floats:
    """(models, 1): operational minutes, at least 1; the current gap counts as one of this age."""
    is_gap = np.isfinite(gaps)
    total = np.where(is_gap, gaps, 0.0).sum(axis=1, keepdims=True) + age
    result: Floats = np.maximum(total / (is_gap.sum(axis=1, keepdims=True) + 1), 1.0)
    return result


def p_next_burst(seconds: Integers, *, window_s: float) -> Floats:
    """(models,): P(a burst starts within the window). `seconds`: counts per second, latest last.

    A burst starts with an arrival after `QUIET_S` without any. After k similar intervals between
    starts, the next start is due one interval after the last with probability k / (k + 1):
    Laplace's rule of succession without its prior of one half. Covers intervals of up to two and a
    half minutes, half of the counts per second; the forecasts by pattern cover those of five and
    more.
    """
    models, length = seconds.shape
    p = np.zeros(models)
    rows, columns = np.nonzero(_starts(seconds > 0))
    first = np.searchsorted(rows, np.arange(models + 1))
    known = np.flatnonzero(np.diff(first) >= 2)
    if known.size:
        ends = first[known + 1] - 1
        begins = _run_begins(columns, first[known], ends)
        run = ends - begins
        interval = (columns[ends] - columns[begins]) / run
        since = length - 1 - columns[ends]
        is_over = (since > _OVERDUE_RATIO * interval) | (interval - since > window_s)
        p[known] = np.where(is_over, 0.0, run / (run + 1))
    return p


def _starts(is_active: Booleans) -> Booleans:
    """True in the first second of each burst; not in the first `QUIET_S`, whose past is unknown."""
    result: Booleans = is_active.copy()
    result[:, :QUIET_S] = False
    for back in range(1, QUIET_S + 1):
        result[:, QUIET_S:] &= ~is_active[:, QUIET_S - back : -back]
    return result


def _run_begins(starts: Integers, first: Integers, ends: Integers) -> Integers:
    """(models,): index of the start from which on all intervals are similar to the last one.

    `starts` are those of all models, one model after the other; `first` and `ends` are the indices
    of each model's first and last start, of at least two.
    """
    intervals = np.diff(starts, append=0)
    indices = np.arange(intervals.size)
    for_model = np.repeat(np.arange(ends.size), ends - first)
    of_models = np.concatenate([[0], np.cumsum(ends - first)])
    inside = indices[first[for_model] + np.arange(of_models[-1]) - of_models[for_model]]
    last = intervals[ends - 1][for_model]
    is_similar = np.abs(intervals[inside] - last) <= np.maximum(_SIMILAR_SHARE * last, _SIMILAR_S)
    after = np.where(is_similar, -1, inside) + 1
    return np.maximum(np.maximum.reduceat(after, of_models[:-1]), first)
