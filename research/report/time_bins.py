"""Bins of time, units of time axes, and durations in words."""

from typing import Final

import numpy as np

from load.report.run import Bools, Floats

_BINS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86400)
_MAX_BINS: Final = 240
_MIN_MINUTES: Final = 5


def bin_length_s(duration_s: float, *, minutes: bool = False) -> float:
    """A round length that divides a duration into at most 240 bins, and at least 40 if it can.

    With `minutes` it is a minute for durations from 5 minutes, as in Blinowski et al. 2024.
    """
    if minutes and duration_s >= _MIN_MINUTES * 60 and duration_s / 60 <= _MAX_BINS:
        return 60.0
    wanted = duration_s / (_MAX_BINS / 4)
    return next((each for each in _BINS_S if each >= wanted), duration_s / _MAX_BINS)


def bin_counts(times_s: Floats, length_s: float, bins: int, where: Bools | None = None) -> Floats:
    """Number of times in each bin."""
    chosen = times_s if where is None else times_s[where]
    at = np.clip((chosen / length_s).astype(np.int64), 0, bins - 1)
    return np.asarray(np.bincount(at, minlength=bins), dtype=np.float64)


def bin_edges(length_s: float, bins: int, unit_s: float) -> Floats:
    """Edges of the bins, in units of an axis."""
    return np.asarray(np.arange(bins + 1) * length_s / unit_s, dtype=np.float64)


def bin_name(length_s: float) -> str:
    """`minute`, or `10 s`."""
    names = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}
    return names.get(float(length_s), format_duration(length_s))


def axis_unit(duration_s: float) -> tuple[float, str]:
    """A unit for a time axis: its length in seconds and its name."""
    if duration_s < 300:
        return 1.0, "s"
    return (60.0, "min") if duration_s < 4 * 3600 else (3600.0, "h")


def format_duration(seconds: float) -> str:
    """Two or three digits: `12 ms`, `3.4 s`, `5.0 min`."""
    if seconds != seconds:
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
