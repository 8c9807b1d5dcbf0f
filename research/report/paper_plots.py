"""Plots of `pilotlight report` after papers: goodput, utility, and memory against cold starts."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from load.report.run import WASTED_KEY, Run
from load.report.summary import summarise_answers
from research.report.style import (
    COLOURS,
    MARKERS,
    LeftOut,
    Plot,
    labels,
    legend_below,
    not_shown_note,
    one_axes,
)

_GB: Final = 1e9
_AXIS_MARGIN: Final = 1.15
"""End of an axis, as a multiple of the largest value on it."""
_LEGEND_SCALE: Final = 0.55
"""Size of a mark in the legend, relative to the plot."""


def utility(runs: Sequence[Run]) -> Plot | LeftOut | None:
    """Mean utility, share of right answers and of missed deadlines, by run.

    None where no run is of applications.
    """
    if not any(run.answers is not None for run in runs):
        return None
    heading = "Utility of applications' requests"
    found = [(run, summary) for run in runs if (summary := summarise_answers(run)) is not None]
    if not found:
        return LeftOut(heading, "no run has labelled examples (`load run --examples`)")
    run_labels = labels([run.name for run in runs])
    best, highest = max(found, key=lambda each: each[1]["utility"])
    figure, axes = one_axes(
        f"{run_labels[best.name]} has the highest mean utility: {highest['utility']:.3f}",
        "Run",
        "Mean over requests",
    )
    series = (
        ("utility", [each["utility"] for _, each in found]),
        ("right answers", [each["accuracy"] or 0.0 for _, each in found]),
        ("missed deadlines", [each["missed"] / each["requests"] for _, each in found]),
    )
    places = np.arange(len(found))
    for at, (name, values) in enumerate(series):
        axes.bar(places + (at - 1) * 0.27, values, 0.25, label=name, color=COLOURS[at])
    axes.set_xticks(places, [run_labels[run.name] for run, _ in found])
    axes.set_ylim(0, 1)
    legend_below(axes)
    caption = (
        "Utility is 1 less the penalty of lateness for a right answer, else 0 (Wolfrath et al. "
        f"2025, eq. 2).{not_shown_note(run_labels, [run for run, _ in found])}"
    )
    return Plot("utility", heading, caption, figure)


def goodput(runs: Sequence[Run]) -> Plot | LeftOut:
    """Requests per second answered in time against offered; runs of one policy are joined."""
    heading = "Goodput against offered load"
    shown = [
        (at, run, (rps, run.goodput_rps))
        for at, run in enumerate(runs)
        if (rps := run.offered_rps) is not None
    ]
    if not shown:
        return LeftOut(heading, "all requests arrive at one moment")
    run_labels = labels([run.name for run in runs])
    _, best, (offered, reached) = max(shown, key=lambda each: each[2][1])
    figure, axes = one_axes(
        f"{run_labels[best.name]} reaches {reached:.3g} of {offered:.3g} requests/s offered",
        "Offered load (requests/s)",
        "Goodput (requests/s answered in time)",
    )
    limit = _AXIS_MARGIN * max(max(point) for _, _, point in shown)
    axes.plot([0, limit], [0, limit], color="#999999", linestyle=":", label="all in time")
    for policy in dict.fromkeys(_policy(run) for _, run, _ in shown):
        line = sorted(point for _, run, point in shown if _policy(run) == policy)
        if policy and len(line) > 1:
            axes.plot(*zip(*line, strict=True), color="#bbbbbb", linewidth=1.2, zorder=1)
    for at, run, point in shown:
        _mark(axes, point, at, run_labels[run.name])
    axes.set_xlim(0, limit)
    axes.set_ylim(0, limit)
    legend_below(axes, marker_scale=_LEGEND_SCALE)
    caption = (
        "One point per run; runs of one policy are joined in order of load. Goodput counts "
        "responses within their deadline, and all complete responses where there is none "
        "(as Elvinger 2024, figure 6.15)."
        f"{not_shown_note(run_labels, [run for _, run, _ in shown])}"
    )
    return Plot("goodput", heading, caption, figure)


def _mark(axes: Axes, point: tuple[float, float], at: int, label: str) -> None:
    """Draw a run's point: hollow, and smaller from run to run, so that all are visible."""
    axes.plot(
        *point,
        MARKERS[at],
        color=COLOURS[at],
        fillstyle="none",
        markeredgewidth=2,
        markersize=16 - at,
        label=label,
        linestyle="none",
        clip_on=False,
    )


def _policy(run: Run) -> str:
    return next(iter(run.policy.counts()), "")


def wasted_memory(runs: Sequence[Run]) -> Plot | LeftOut:
    """Memory that idle models held against the rate of cold starts, with the Pareto front."""
    heading = "Wasted memory against cold starts"
    shown = [
        (at, run, wasted)
        for at, run in enumerate(runs)
        if (wasted := run.wasted_memory_byte_s) is not None and (run.start.codes >= 0).any()
    ]
    if not shown:
        return LeftOut(
            heading, f"no run records both its memory-time ({WASTED_KEY}) and its starts"
        )
    points = [(wasted / _GB, float(run.is_cold.mean())) for _, run, wasted in shown]
    front = pareto(points)
    run_labels = labels([run.name for run in runs])
    names = ", ".join(run_labels[shown[at][1].name] for at in front)
    figure, axes = one_axes(
        f"On the Pareto front: {names}",
        "Wasted memory-time (GB s)",
        "Requests that started cold (%)",
    )
    line = [points[at] for at in front]
    axes.step(
        *zip(*line, strict=True),
        where="post",
        color="#bbbbbb",
        zorder=1,
        label="no run is better in both (Pareto front)",
    )
    for (at, run, _), point in zip(shown, points, strict=True):
        _mark(axes, point, at, run_labels[run.name])
    axes.set_xlim(0, _AXIS_MARGIN * max(wasted for wasted, _ in points) or 1)
    axes.set_ylim(0, _AXIS_MARGIN * max(cold for _, cold in points) or 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    legend_below(axes, marker_scale=_LEGEND_SCALE)
    caption = (
        "Device memory of idle models, times seconds (1 GB s is a gigabyte for a second), against "
        "the share of requests that started cold; nearer to the lower left is better."
        f"{not_shown_note(run_labels, [run for _, run, _ in shown])}"
    )
    return Plot("wasted_memory", heading, caption, figure)


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other one beats in both values, by the first value."""
    order = sorted(range(len(points)), key=lambda at: points[at])
    front: list[int] = []
    lowest = np.inf
    for at in order:
        if points[at][1] < lowest:
            front.append(at)
            lowest = points[at][1]
    return front
