"""Times for eyes: bins of a readable length, durations in a readable unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from load.report.run import Bools, Floats

_BINS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86400)
_MOST_BINS: Final = 240
_LEAST_MINUTES: Final = 5


def bin_length_s(duration_s: float, *, minutes: bool = False) -> float:
    """A round length that cuts a duration into at most 240 bins, some 40 at least if it can.

    With `minutes` it is a minute, as in Blinowski et al. 2024, for whatever is long enough.
    """
    if minutes and duration_s >= _LEAST_MINUTES * 60 and duration_s / 60 <= _MOST_BINS:
        return 60.0
    wanted = duration_s / (_MOST_BINS / 4)
    return next((each for each in _BINS_S if each >= wanted), duration_s / _MOST_BINS)


def counts(times_s: Floats, length_s: float, bins: int, where: Bools | None = None) -> Floats:
    """How many times fall into each bin."""
    chosen = times_s if where is None else times_s[where]
    at = np.clip((chosen / length_s).astype(np.int64), 0, bins - 1)
    return np.asarray(np.bincount(at, minlength=bins), dtype=np.float64)


def edges(length_s: float, bins: int, unit_s: float) -> Floats:
    """The bins' edges in units of an axis."""
    return np.asarray(np.arange(bins + 1) * length_s / unit_s, dtype=np.float64)


def axis_unit(duration_s: float) -> tuple[float, str]:
    """A unit for a time axis: its length in seconds and its name."""
    if duration_s < 300:
        return 1.0, "s"
    return (60.0, "min") if duration_s < 4 * 3600 else (3600.0, "h")


def spoken(seconds: float) -> str:
    """A duration in two or three digits: `12 ms`, `3.4 s`, `5.0 min`."""
    if seconds != seconds:
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def bin_name(length_s: float) -> str:
    """What a bin is called: `minute`, or `10 s`."""
    names = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}
    return names.get(float(length_s), spoken(length_s))
