"""P(arrival) by the gaps between a model's arrivals, given the time since the last one.

The empirical hazard of the model's own gaps, shrunk towards that of all models with gaps of similar
length. Gaps are in operational minutes (`day_profile`). Source: the histogram of idle times of
Shahrad et al. 2020, section 4.2, here conditioned on the time since the last arrival and pooled.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from autoscaler.forecasting.day_profile import operational_minutes
from autoscaler.forecasting.history import NEVER, Floats, History, Integers

_GRID: Final = np.exp2(np.arange(-1, 15.5, 0.25))
"""Ages of the pooled survival function: half a minute to over two weeks, operational minutes."""
_CLASSES: Final = 8
_CLASS_WIDTH: Final = 1.5
_PRIOR_GAPS: Final = 4.0
"""Pseudo-gaps with survival 1 / (1 + age / typical) in each class, for classes with few models."""
_POOLED_GAPS: Final = 6.0
"""Weight of the pooled hazard, in gaps of the model's own that are longer than the current one."""
_FADE: Final = 0.985
"""Weight of a gap over that of the next one: the last 50 gaps have half of the weight."""


def fit_gap_survival(history: History, shared: Floats) -> Floats:
    """(classes, ages of `_GRID`): survival of gaps, falling from 1, never 0.

    A class is of models with gaps of similar length. Product limit estimator (Kaplan and Meier
    1958): the current gap of a model is at risk up to its age. `shared`: shared day profile.
    """
    gaps, age = _gaps(history, shared), _age(history, shared)
    classes = _class_of(gaps, age)
    survival = np.empty((_CLASSES, _GRID.size))
    for each in range(_CLASSES):
        rows = classes == each
        over = gaps[rows]
        over = np.sort(over[np.isfinite(over)])
        longer = over.size - np.searchsorted(over, _GRID, side="right")
        at_risk = longer + (age[rows, None] > _GRID).sum(axis=0)
        prior = _PRIOR_GAPS / (1 + _GRID / 2.0 ** ((each + 0.5) * _CLASS_WIDTH))
        ended = (longer[:-1] - longer[1:]) + (prior[:-1] - prior[1:])
        hazard = ended / (at_risk[:-1] + prior[:-1])
        survival[each] = np.concatenate([[1.0], np.cumprod(1 - hazard)])
    return survival


def p_arrival_by_interarrival(
    history: History, shared: Floats, survival: Floats, windows_min: Floats
) -> Floats:
    gaps, age = _gaps(history, shared), _age(history, shared)
    start = history.origin_s / 60
    ends = operational_minutes(start + windows_min, shared)
    lengths = ends - operational_minutes(np.array([start]), shared)
    weights = _FADE ** np.arange(gaps.shape[1] - 1, -1, -1.0)
    shared_p = _pooled_p(survival, _class_of(gaps, age), age, lengths)
    at_risk = (np.where(gaps > age[:, None], 1.0, 0.0) * weights).sum(axis=1)
    result = np.empty((history.models, windows_min.size))
    for column, length in enumerate(lengths):
        is_hit = (gaps > age[:, None]) & (gaps <= age[:, None] + length)
        hits = (is_hit * weights).sum(axis=1)
        pooled_hits = _POOLED_GAPS * shared_p[:, column]
        result[:, column] = (hits + pooled_hits) / (at_risk + _POOLED_GAPS)
    return np.clip(np.maximum.accumulate(result, axis=1), 0.0, 1.0)


def _gaps(history: History, shared: Floats) -> Floats:
    """(models, k - 1): gaps between minutes with arrivals; padded with NaN in front."""
    active = history.active_minutes
    if active.shape[1] < 2:
        return np.full((history.models, 1), np.nan)
    times = operational_minutes(active + 0.5, shared)
    is_gap = active[:, :-1] != NEVER
    return np.where(is_gap, np.diff(times, axis=1), np.nan)


def _age(history: History, shared: Floats) -> Floats:
    """(models,): operational minutes since the last arrival, or since the counts begin."""
    active = history.active_minutes
    last = active[:, -1] if active.shape[1] else np.full(history.models, NEVER)
    since = np.where(last == NEVER, history.since_minute, last + 0.5).astype(np.float64)
    now = operational_minutes(np.array([history.origin_s / 60]), shared)
    return np.maximum(now - operational_minutes(since, shared), 0.0)


def _class_of(gaps: Floats, age: Floats) -> Integers:
    """(models,): class by the mean gap, including the current one."""
    is_gap = np.isfinite(gaps)
    mean = (np.where(is_gap, gaps, 0.0).sum(axis=1) + age) / (is_gap.sum(axis=1) + 1)
    level = np.log2(np.maximum(mean, 1.0)) / _CLASS_WIDTH
    result: Integers = np.clip(level, 0, _CLASSES - 1).astype(np.int64)
    return result


def _pooled_p(survival: Floats, classes: Integers, age: Floats, lengths: Floats) -> Floats:
    """(models, windows): 1 - S(age + length) / S(age), interpolated over the logarithm of age."""
    at = np.log2(_GRID)
    logs = np.log(survival)
    result = np.empty((age.size, lengths.size))
    for each in np.unique(classes):
        rows = classes == each
        now = np.interp(_log2(age[rows]), at, logs[each])
        for column, length in enumerate(lengths):
            then = np.interp(_log2(age[rows] + length), at, logs[each])
            result[rows, column] = -np.expm1(then - now)
    return result


def _log2(minutes: Floats) -> Floats:
    result: Floats = np.log2(np.maximum(minutes, _GRID[0]))
    return result
