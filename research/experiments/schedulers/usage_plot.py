"""Models loading, loaded and inferring over time (Blinowski et al. 2024, figure 5.7)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from load.report.run import Floats
from research.report.style import labels, legend_below

_PIXELS: Final = 700
"""Minimum width of an axis: a narrower span could vanish between two pixels."""
_LOADED: Final = 0.3
"""Opacity of loaded models; loading is opaque."""


@dataclass(frozen=True, slots=True)
class TimeSpans:
    """Disjoint spans of time, sorted. Seconds."""

    begins: Floats
    ends: Floats

    @property
    def total_s(self) -> float:
        return float((self.ends - self.begins).sum())


def union(begins: Floats, ends: Floats, *, gap_s: float = 0.0) -> TimeSpans:
    """The union of spans; gaps up to `gap_s` are closed."""
    if not len(begins):
        return TimeSpans(begins, ends)
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    is_new = np.concatenate(([True], begins[1:] > ends[:-1] + gap_s))
    first = np.flatnonzero(is_new)
    last = np.concatenate((first[1:] - 1, [len(begins) - 1]))
    return TimeSpans(begins[first], ends[last])


@dataclass(frozen=True, slots=True)
class PodUsage:
    """One model on one pod."""

    pod: str
    model: str
    loading: TimeSpans
    inferring: TimeSpans
    loaded: TimeSpans
    """From the end of a load, or the first use, to the last use before the next load."""


def usage_legend(axes: Axes, colour: str) -> None:
    for label, shade, alpha in (
        ("loading", colour, 1.0),
        ("loaded", colour, _LOADED),
        ("inferring", "black", 1.0),
    ):
        axes.broken_barh([], (0, 1), color=shade, alpha=alpha, linewidth=0, label=label)
    legend_below(axes)


def draw_usage(
    axes: Axes,
    found: Sequence[PodUsage],
    duration_s: float,
    unit_s: float,
    colour: str,
    *,
    start_s: float = 0.0,
) -> None:
    """One row per model, from `start_s` for `duration_s`."""
    pixel_s = duration_s / _PIXELS
    for row, each in enumerate(found):
        _blocks(axes, each.loaded, row, 0.8, colour, _LOADED, pixel_s, unit_s)
        _blocks(axes, each.loading, row, 0.8, colour, 1.0, pixel_s, unit_s)
        _blocks(axes, each.inferring, row, 0.4, "black", 1.0, pixel_s, unit_s)
    axes.set_yticks(range(len(found)), list(labels([each.model for each in found]).values()))
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlim(start_s / unit_s, (start_s + duration_s) / unit_s)
    axes.grid(visible=False, axis="y")


def _blocks(
    axes: Axes,
    spans: TimeSpans,
    row: int,
    height: float,
    colour: str,
    alpha: float,
    pixel_s: float,
    unit_s: float,
) -> None:
    """Draw spans of time; spans nearer than half a pixel are joined."""
    drawn = union(spans.begins, spans.ends, gap_s=pixel_s / 2)
    widths = np.maximum(drawn.ends - drawn.begins, pixel_s) / unit_s
    pairs = list(zip(drawn.begins / unit_s, widths, strict=True))
    axes.broken_barh(pairs, (row - height / 2, height), color=colour, alpha=alpha, linewidth=0)
