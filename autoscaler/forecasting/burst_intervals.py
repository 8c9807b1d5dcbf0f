"""P(arrival soon) of models that come in bursts at even gaps of seconds: faster than minutes show.

A burst begins with an arrival after `QUIET_S` without any. Where the last gaps between such
beginnings are alike, the next one is due a gap after the last; with k gaps alike it comes with
probability k / (k + 1), Laplace's rule of succession without its prior of one half. The forecasts
by type know periods of five minutes and more (`behaviour`); this one knows what fits in the seconds
that are kept, up to two and a half minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Booleans, Floats, Integers

QUIET_S: Final = 5
_ALIKE_SHARE: Final = 0.25
_ALIKE_S: Final = 2.0
"""Gaps are alike if they differ from the last one by less than this share of it, or so little."""
_OVERDUE_SHARE: Final = 1.5
"""Who is overdue by half a gap has stopped."""


def p_by_rhythm(seconds: Integers, *, window_s: float) -> Floats:
    """(models,): P(a burst begins within the window) by counts per second, the latest last."""
    models, length = seconds.shape
    p = np.zeros(models)
    rows, columns = np.nonzero(_onsets(seconds > 0))
    first = np.searchsorted(rows, np.arange(models + 1))
    known = np.flatnonzero(np.diff(first) >= 2)
    if known.size:
        ends = first[known + 1] - 1
        starts = _run_starts(columns, first[known], ends)
        run = ends - starts
        gap = (columns[ends] - columns[starts]) / run
        since = length - 1 - columns[ends]
        is_over = (since > _OVERDUE_SHARE * gap) | (gap - since > window_s)
        p[known] = np.where(is_over, 0.0, run / (run + 1))
    return p


def _onsets(is_active: Booleans) -> Booleans:
    """Seconds with arrivals after `QUIET_S` without; at the start nobody knows what came before."""
    result: Booleans = is_active.copy()
    result[:, :QUIET_S] = False
    for back in range(1, QUIET_S + 1):
        result[:, QUIET_S:] &= ~is_active[:, QUIET_S - back : -back]
    return result


def _run_starts(onsets: Integers, first: Integers, ends: Integers) -> Integers:
    """(models,): the onset from which on all gaps are like the last one.

    `onsets` are those of all models, one model after the other; `first` and `ends` are the places
    of each model's first and last one there, of two at least.
    """
    gaps = np.diff(onsets, append=0)
    places = np.arange(gaps.size)
    for_model = np.repeat(np.arange(ends.size), ends - first)
    of_models = np.concatenate([[0], np.cumsum(ends - first)])
    inside = places[first[for_model] + np.arange(of_models[-1]) - of_models[for_model]]
    last = gaps[ends - 1][for_model]
    is_alike = np.abs(gaps[inside] - last) <= np.maximum(_ALIKE_SHARE * last, _ALIKE_S)
    after = np.where(is_alike, -1, inside) + 1
    result: Integers = np.maximum(np.maximum.reduceat(after, of_models[:-1]), first)
    return result
