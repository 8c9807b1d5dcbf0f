"""P(arrival within a window) of models with bursts at regular intervals of seconds.

A burst starts with an arrival after `QUIET_S` without any. If the last intervals between starts are
similar, the next start is due one interval after the last; after k similar intervals it comes with
probability k / (k + 1), Laplace's rule of succession without its prior of one half. The forecasts
by pattern cover periods of five minutes and more; this one covers intervals of up to two and a half
minutes, since counts per second are kept for five.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Booleans, Floats, Integers

QUIET_S: Final = 5
_SIMILAR_SHARE: Final = 0.25
_SIMILAR_S: Final = 2.0
"""Intervals are similar if they differ from the last one by less than this share or time."""
_OVERDUE_RATIO: Final = 1.5
"""Without a start after this many intervals the bursts are over."""


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
