"""P(arrival within the next minute), by how lately and how often a model was asked for.

One logistic regression for all models, learnt from the last two days: on the logarithm of the time
since the last arrival, of the share of active minutes over several half-lives, and of their
products; where little was seen it leans on odds that fall as the silence grows. It sees bursts end,
which the forecasts by type (`forecasts`) see late; those see days and periods. `p_minute` pools
both by their log-odds, as `forecasts` pools gaps and levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.history import NEVER, Booleans, Floats, Integers
from autoscaler.forecasting.log_odds import pool

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Forecast, ForecastHorizon, History

_HALF_LIVES_MIN: Final = np.array([3.0, 10.0, 30.0, 120.0, 600.0, 2880.0])
_LEAST: Final = 1e-4
_MOST_AGE_MIN: Final = 1e5
_MOST_ROWS: Final = 200
"""Models learnt from, spread evenly over all."""
_MOST_MINUTES: Final = 80_000
"""Minutes of these models learnt from: all, or where there are more each `_EVERY_MIN`."""
_EVERY_MIN: Final = 7
"""No divisor of an hour, so that all minutes of it count."""
_PRIOR_AGE: Final = -1.0
"""Weight of the age where nothing was seen: odds of one over the minutes of silence."""
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
    known = history.known_minutes[::stride].astype(np.int64)
    is_active = np.asarray(history.minutes[::stride, -known.max(initial=1) :], dtype=np.uint32) > 0
    features, came = _past(is_active, history.active[::stride], known, history.origin_minute)
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
    question: ForecastHorizon,
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


def _past(
    is_active: Booleans, active: Integers, known: Integers, origin: int
) -> tuple[Floats, Floats]:
    """Features (rows, features) before past minutes that are known, and whether a request came."""
    models, minutes = is_active.shape
    every = 1 if known.sum() <= _MOST_MINUTES else _EVERY_MIN
    start = origin - minutes
    before = np.where((active != NEVER) & (active < start), active, NEVER).max(axis=1, initial=-1)
    last = np.where(before == NEVER, -np.inf, before.astype(np.float64))
    keep = np.exp2(-1 / _HALF_LIVES_MIN)
    levels, ages = np.zeros((models, keep.size)), []
    kept: list[Floats] = []
    for minute in range(minutes):
        if minute % every == 0:
            ages.append(start + minute - last - 0.5)
            kept.append(levels)
        levels = keep * levels + (1 - keep) * is_active[:, minute, None]
        last = np.where(is_active[:, minute], start + minute, last)
    # The first minute of a model says nothing: perhaps it is known since it was asked for.
    is_known = np.arange(0, minutes, every) > minutes - known[:, None]
    features = _features(np.stack(kept, axis=1), np.stack(ages, axis=1))
    return features[is_known], is_active[:, ::every][is_known].astype(np.float64)


def _regress(features: Floats, came: Floats) -> Floats:
    """Logistic regression by Newton's method, with a ridge on features of unit spread.

    The ridge holds what is learnt near the prior: one positive among few rows says little.
    """
    prior = np.zeros(features.shape[1])
    prior[0] = _PRIOR_AGE
    if not came.size:
        return prior
    mean, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread < _NO_SPREAD, np.inf, spread)  # nothing to be learnt from it
    mean[-1], spread[-1] = 0.0, 1.0
    scaled = (features - mean) / spread
    learnt = -prior * np.where(np.isfinite(spread), spread, 0.0)  # from even odds on: it converges
    learnt[-1] = -mean @ prior
    ridge = _RIDGE * np.eye(learnt.size)
    for _ in range(_STEPS):
        odds = features @ prior + scaled @ learnt
        p = 1 / (1 + np.exp(-np.clip(odds, -30.0, 30.0)))
        slope = scaled.T @ (came - p) - ridge @ learnt
        curve = (scaled * (p * (1 - p))[:, None]).T @ scaled + ridge
        learnt = learnt + np.linalg.solve(curve, slope)
    result: Floats = prior + learnt / spread
    result[-1] -= (learnt / spread)[:-1] @ mean[:-1]
    return result
