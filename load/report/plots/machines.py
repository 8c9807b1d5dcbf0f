"""Models loading, loaded and inferring on each pod over time (Blinowski et al., figure 5.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from load.report.pod_usage import pod_usages, union
from load.report.style import COLOURS, LeftOut, Plot, labels, legend_below, rows_of_axes, shortened
from load.report.times import axis_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from load.report.pod_usage import PodUsage, TimeSpans
    from load.report.run import Run

_MAX_PODS: Final = 4
_MAX_MODELS: Final = 10
_PIXELS: Final = 700
"""Minimum width of an axis: a narrower span could vanish between two pixels."""
_LOADED: Final = 0.3
"""Opacity of loaded models; loading is opaque."""


def machine_usage(run: Run, number: int) -> Plot | LeftOut:
    """The busiest pods of one run, one below the other."""
    heading = f"Machine usage: {run.name}"
    if not (run.predict_pod.codes >= 0).any():
        return LeftOut(heading, "the records name no pod")
    found = [
        each for each in pod_usages(run) if len(each.loading.begins) or len(each.inferring.begins)
    ]
    if not found:
        return LeftOut(heading, "no request reached a model")
    busy: dict[str, float] = {}
    for pod in dict.fromkeys(each.pod for each in found):
        spans = [s for each in found if each.pod == pod for s in (each.loading, each.inferring)]
        begins, ends = [each.begins for each in spans], [each.ends for each in spans]
        busy[pod] = union(np.concatenate(begins), np.concatenate(ends)).total_s
    pods = sorted(sorted(busy, key=lambda pod: (-busy[pod], pod))[:_MAX_PODS])
    shown = {pod: _busiest([each for each in found if each.pod == pod]) for pod in pods}
    unit_s, unit = axis_unit(run.duration_s)
    figure, rows = rows_of_axes([0.85 + 0.24 * len(shown[pod]) for pod in pods])
    for axes, pod in zip(rows, pods, strict=True):
        draw_usage(axes, shown[pod], run.duration_s, unit_s, COLOURS[number - 1])
        ratio = busy[pod] / run.duration_s
        axes.set_title(f"{shortened(pod)}: {ratio:.0%} of the time loading or inferring")
    rows[-1].set_xlabel(f"Time since start ({unit})")
    usage_legend(rows[-1], COLOURS[number - 1])
    others = f" The {len(busy) - len(pods)} others did less." if len(busy) > len(pods) else ""
    caption = (
        f"{len(pods)} of {len(busy)} pods with the models that ran there most, at most "
        f"{_MAX_MODELS}, as far as records show (Blinowski et al. 2024, figure 5.7).{others} "
        "Loaded lasts until a model's last use before its next load. Short spans are drawn a pixel "
        "wide. Not shown: loads that no record shows (preloads, and loads whose requests were "
        "cancelled), and loaded models without requests; a preloaded model appears with its first "
        "request."
    )
    return Plot(f"machine_usage_{number}", heading, caption, figure)


def _busiest(found: list[PodUsage]) -> list[PodUsage]:
    kept = sorted(found, key=lambda each: (-each.inferring.total_s, each.model))
    return sorted(kept[:_MAX_MODELS], key=lambda each: each.model)


def usage_legend(axes: Axes, colour: str) -> None:
    for label, shade, alpha in (
        ("loading", colour, 1.0), ("loaded", colour, _LOADED), ("inferring", "black", 1.0),
    ):  # fmt: skip
        axes.broken_barh([], (0, 1), color=shade, alpha=alpha, linewidth=0, label=label)
    legend_below(axes)


def draw_usage(
    axes: Axes, found: Sequence[PodUsage], duration_s: float, unit_s: float, colour: str,
    *, start_s: float = 0.0,
) -> None:  # fmt: skip
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
    axes: Axes, spans: TimeSpans, row: int, height: float, colour: str, alpha: float,
    pixel_s: float, unit_s: float,
) -> None:  # fmt: skip
    """Draw spans of time; spans nearer than half a pixel are joined."""
    drawn = union(spans.begins, spans.ends, gap_s=pixel_s / 2)
    widths = np.maximum(drawn.ends - drawn.begins, pixel_s) / unit_s
    pairs = list(zip(drawn.begins / unit_s, widths, strict=True))
    axes.broken_barh(pairs, (row - height / 2, height), color=colour, alpha=alpha, linewidth=0)
