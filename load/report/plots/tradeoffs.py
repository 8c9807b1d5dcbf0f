"""Two figures against one another: goodput and offered load, wasted memory and cold starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.ticker import PercentFormatter

from load.report.run import WASTED_KEY
from load.report.style import COLOURS, MARKERS, LeftOut, Plot, legend_below, one_axes, short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load.report.run import Run

_GB: Final = 1e9
_ROOM: Final = 1.15
"""Of an axis, over the largest figure on it."""


def goodput(runs: Sequence[Run]) -> Plot:
    """Requests per second answered in time against those offered; runs of one policy joined."""
    points = [(run.requests / run.offered_s, float(run.is_good.sum()) / run.duration_s)
              for run in runs]  # fmt: skip
    best = max(range(len(runs)), key=lambda at: points[at][1])
    figure, axes = one_axes(
        f"{short(runs[best].name)} reaches {points[best][1]:.3g} of "
        f"{points[best][0]:.3g} requests/s offered",
        "Offered load (requests/s)", "Goodput (requests/s answered in time)",
    )  # fmt: skip
    most = _ROOM * max(max(point) for point in points)
    axes.plot([0, most], [0, most], color="#999999", linestyle=":", label="all in time")
    for policy in dict.fromkeys(map(_policy, runs)):
        line = sorted(points[at] for at, run in enumerate(runs) if _policy(run) == policy)
        if policy and len(line) > 1:
            axes.plot(*zip(*line, strict=True), color="#bbbbbb", linewidth=1.2, zorder=1)
    for index, (run, point) in enumerate(zip(runs, points, strict=True)):
        axes.plot(*point, MARKERS[index], color=COLOURS[index], markersize=9,
                  label=short(run.name), linestyle="none")  # fmt: skip
    axes.set_xlim(0, most)
    axes.set_ylim(0, most)
    legend_below(axes)
    caption = (
        "One point per run; runs of one policy are joined in order of load. Goodput counts answers "
        "within their deadline, and all whole answers where there is none "
        "(as Elvinger 2024, figure 6.15)."
    )
    return Plot("goodput", "Goodput against offered load", caption, figure)


def _policy(run: Run) -> str:
    return next(iter(run.policy.counts()), "")


def wasted_memory(runs: Sequence[Run]) -> Plot | LeftOut:
    """Memory that idle models held against the rate of cold starts, with the Pareto front."""
    heading = "Wasted memory against cold starts"
    told = [(at, run, wasted) for at, run in enumerate(runs)
            if (wasted := run.wasted_memory_byte_s) is not None]  # fmt: skip
    if not told:
        return LeftOut(heading, f"no run tells its memory-time ({WASTED_KEY})")
    points = [(wasted / _GB, float(run.is_cold.mean())) for _, run, wasted in told]
    front = pareto(points)
    names = ", ".join(short(told[at][1].name) for at in front)
    figure, axes = one_axes(
        f"On the Pareto front: {names}", "Wasted memory-time (GB s)", "Requests that started cold"
    )
    line = [points[at] for at in front]
    axes.step(*zip(*line, strict=True), where="post", color="#bbbbbb", zorder=1)
    for (at, run, _), point in zip(told, points, strict=True):
        axes.plot(*point, MARKERS[at], color=COLOURS[at], markersize=9, label=short(run.name),
                  linestyle="none")  # fmt: skip
    axes.set_xlim(0, _ROOM * max(wasted for wasted, _ in points) or 1)
    axes.set_ylim(0, _ROOM * max(cold for _, cold in points) or 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    legend_below(axes)
    absent = [short(run.name) for run in runs if run.wasted_memory_byte_s is None]
    without = f" Without figures: {', '.join(absent)}." if absent else ""
    caption = (
        "Memory-time held by models that were not in use, against the share of requests that "
        f"started cold; nearer to the lower left is better.{without}"
    )
    return Plot("wasted_memory", heading, caption, figure)


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which points no other one beats in both, by the first figure."""
    order = sorted(range(len(points)), key=lambda at: points[at])
    front: list[int] = []
    least = np.inf
    for at in order:
        if points[at][1] < least:
            front.append(at)
            least = points[at][1]
    return front
