"""P(arrival) by the intervals between a model's arrivals, and between its bursts.

By gaps between arrivals, given the time since the last one: the empirical hazard of the model's own
gaps, shrunk towards that of a Lomax distribution with shape 1 and the mean gap as its scale. Gaps
are in operational minutes (`day_profile`). Source: the histogram of idle times of Shahrad et al.
2020, section 4.2, here conditioned on the time since the last arrival.

By bursts at regular intervals of seconds: a burst starts with an arrival after `QUIET_S` without
any. If the last intervals between starts are similar, the next start is due one interval after the
last; after k similar intervals it comes with probability k / (k + 1), Laplace's rule of succession
without its prior of one half. The forecasts by pattern cover periods of five minutes and more; this
one covers intervals of up to two and a half minutes, since counts per second are kept for five.
"""

from typing import Final

import numpy as np

from autoscaler.forecasting.day_profile import operational_minutes
from autoscaler.forecasting.history import NEVER, Booleans, Floats, History, Integers

_PRIOR_GAPS: Final = 3.0
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
    """(models, windows). `profile`: the day profile that all models share."""
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
        result[:, column] = (hits + _PRIOR_GAPS * prior_p[:, column]) / (at_risk + _PRIOR_GAPS)
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
    """(models,): P(a burst starts within the window). `seconds`: counts per second, latest last."""
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
    result: Integers = np.maximum(np.maximum.reduceat(after, of_models[:-1]), first)
    return result
