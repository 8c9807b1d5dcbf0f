"""P(arrival within the next minute), by how lately and how often a model was asked for.

One logistic regression for all models, learnt from the last two days: on the logarithm of the time
since the last arrival, of the share of active minutes over several half-lives, and of their
products. It sees bursts end, which the forecasts by type (`forecasts`) see late; those see days and
periods. `p_minute` pools both by their log-odds, as `forecasts` pools gaps and levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.history import NEVER, Booleans, Floats, Integers
from autoscaler.forecasting.log_odds import pool

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Forecast, History, Question

_HALF_LIVES_MIN: Final = np.array([3.0, 10.0, 30.0, 120.0, 600.0, 2880.0])
_LEAST: Final = 1e-4
_MOST_AGE_MIN: Final = 1e5
_MOST_ROWS: Final = 200
"""Models learnt from, spread evenly over all."""
_EVERY_MIN: Final = 7
"""Each so many minutes are learnt from: no divisor of an hour, so that all minutes of it count."""
_RIDGE: Final = 1.0
_NO_SPREAD: Final = 1e-6
_STEPS: Final = 12
_SHARE: Final = 0.5
"""Weight of recency against the forecasts: 0.35 to 0.65 do as well on GenTD26, days 19 to 23."""


@dataclass(frozen=True, slots=True)
class Recency:
    """What the regression learnt: weights of the features, the constant last."""

    weights: Floats


def learn_recency(history: History) -> Recency:
    """Learn from the whole minutes of a history."""
    stride = max(1, history.models // _MOST_ROWS)
    is_active = np.asarray(history.minutes[::stride], dtype=np.uint32) > 0
    features, came = _past(is_active, history.active[::stride], history.origin_minute)
    return Recency(weights=_regress(features, came))


def p_recent(history: History, recency: Recency) -> Floats:
    """(models,): P(arrival in the minute from the origin) by recency alone."""
    features = _features(_levels_now(history), history.age_minutes)
    odds = np.clip(features @ recency.weights, -30.0, 30.0)
    result: Floats = 1 / (1 + np.exp(-odds))
    return result


def p_minute(
    history: History,
    recency: Recency,
    forecast: Forecast,
    question: Question,
    is_periodic: Booleans,
) -> Floats:
    """(models,): P(arrival in the minute from the origin), recency and forecast together.

    Of periodic models the forecast alone, at its highest per minute: silence says nothing of them,
    and what is due soon is to be there before.
    """
    by_window = forecast.p_arrival / np.maximum(question.windows_min, 1.0)
    pooled = pool(p_recent(history, recency), by_window.mean(axis=1), _SHARE)
    result: Floats = np.where(is_periodic, by_window.max(axis=1), pooled)
    return result


def _features(levels: Floats, age_min: Floats) -> Floats:
    """(..., features) of levels (..., half-lives) and ages (...)."""
    age = np.log(np.minimum(age_min, _MOST_AGE_MIN) + 0.5)[..., None]
    level = np.log(levels + _LEAST)
    return np.concatenate([age, age**2, level, level * age, np.ones_like(age)], axis=-1)


def _levels_now(history: History) -> Floats:
    """(models, half-lives): the share of active minutes, the last ones counting most."""
    ago = np.maximum(history.origin_minute - 1 - history.active, 0).astype(np.float32)
    ago[history.active == NEVER] = np.inf
    levels = [
        (1 - np.exp2(-1 / each)) * np.exp2(ago * np.float32(-1 / each)).sum(axis=1)
        for each in _HALF_LIVES_MIN
    ]
    result: Floats = np.stack(levels, axis=1)
    return result


def _past(is_active: Booleans, active: Integers, origin: int) -> tuple[Floats, Floats]:
    """Features before each of some past minutes, and whether a request came in it."""
    models, minutes = is_active.shape
    start = origin - minutes
    before = np.where((active != NEVER) & (active < start), active, NEVER).max(axis=1, initial=-1)
    last = np.where(before == NEVER, -np.inf, before.astype(np.float64))
    keep = np.exp2(-1 / _HALF_LIVES_MIN)
    levels, ages = np.zeros((models, keep.size)), []
    kept: list[Floats] = []
    for minute in range(minutes):
        if minute % _EVERY_MIN == 0:
            ages.append(start + minute - last - 0.5)
            kept.append(levels)
        levels = keep * levels + (1 - keep) * is_active[:, minute, None]
        last = np.where(is_active[:, minute], start + minute, last)
    features = _features(np.stack(kept, axis=1), np.stack(ages, axis=1))
    came = is_active[:, ::_EVERY_MIN].astype(np.float64)
    return features.reshape(-1, features.shape[-1]), came.reshape(-1)


def _regress(features: Floats, came: Floats) -> Floats:
    """Logistic regression by Newton's method, with a ridge on features of unit spread."""
    mean, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread < _NO_SPREAD, np.inf, spread)  # nothing to be learnt from it: weight 0
    mean[-1], spread[-1] = 0.0, 1.0
    scaled = (features - mean) / spread
    weights = np.zeros(scaled.shape[1])
    ridge = _RIDGE * np.eye(weights.size)
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-np.clip(scaled @ weights, -30.0, 30.0)))
        slope = scaled.T @ (came - p) - ridge @ weights
        curve = (scaled * (p * (1 - p))[:, None]).T @ scaled + ridge
        weights = weights + np.linalg.solve(curve, slope)
    result: Floats = weights / spread
    result[-1] -= (result[:-1] * mean[:-1]).sum()
    return result
