"""P(arrival) by the gaps between a model's arrivals, given the time since the last one.

The empirical hazard of the model's own gaps, shrunk towards that of a Lomax distribution with shape
1 and the mean gap as its scale. Gaps are in operational minutes (`day_profile`). Source: the
histogram of idle times of Shahrad et al. 2020, section 4.2, here conditioned on the time since the
last arrival.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from autoscaler.forecasting.day_profile import operational_minutes
from autoscaler.forecasting.history import NEVER, Floats, History

_PRIOR_GAPS: Final = 3.0
"""Weight of the Lomax hazard, in gaps of the model's own that are longer than the current one."""
_FADE: Final = 0.985
"""Weight of a gap over that of the next one: the last 50 gaps have half of the weight."""


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
