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
    counts = np.diff(first)
    for row in np.flatnonzero(counts >= 2).tolist():
        p[row] = _p_next(columns[first[row] : first[row + 1]], length - 1, window_s)
    return p


def _onsets(is_active: Booleans) -> Booleans:
    """Seconds with arrivals after `QUIET_S` without; at the start nobody knows what came before."""
    total = np.cumsum(is_active, axis=1)
    before = np.zeros_like(total)
    before[:, 1:] = total[:, :-1]
    earlier = np.zeros_like(total)
    earlier[:, QUIET_S + 1 :] = total[:, : -QUIET_S - 1]
    result: Booleans = is_active & (before == earlier)
    result[:, :QUIET_S] = False
    return result


def _p_next(onsets: Integers, now: int, window_s: float) -> float:
    gaps = np.diff(onsets).astype(np.float64)
    last = float(gaps[-1])
    alike = np.abs(gaps - last) <= max(_ALIKE_SHARE * last, _ALIKE_S)
    others = np.flatnonzero(~alike)
    run = gaps[others[-1] + 1 :] if others.size else gaps
    gap, since = float(run.mean()), float(now - onsets[-1])
    if since > _OVERDUE_SHARE * gap or gap - since > window_s:
        return 0.0
    return run.size / (run.size + 1)
