"""The comparison in one picture: completion times, missed deadlines by minute, loading times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from load.experiments.schedulers.scheduler_configs import LINEUP, SHIPPED
from load.report.style import COLOURS, DPI, LINES, legend_below, log_ticks, rows_of_axes, styled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from load.experiments.schedulers.runs import SchedulerResult


def draw(outcomes: Sequence[SchedulerResult], folder: Path) -> Path:
    """Write `schedulers.png`: minutes are those of the first seed, the rest is of all seeds."""
    path = folder / "schedulers.png"
    runs = {
        name: [each for each in outcomes if each.scheduler == name]
        for name in LINEUP
        if name != SHIPPED
    }
    with styled():
        figure, (completion, minutes, loads) = rows_of_axes([3.4, 3.2, 2.8])
        _completion(completion, runs)
        _minutes(minutes, {name: found[0] for name, found in runs.items()})
        _loads(loads, runs)
        legend_below(completion)
        figure.savefig(path, format="png", dpi=DPI)
    return path


def _completion(axes: Axes, runs: dict[str, list[SchedulerResult]]) -> None:
    for at, (name, found) in enumerate(runs.items()):
        times_s = np.median([each.curve_s for each in found], axis=0)
        shares = np.linspace(0, 1, len(times_s))
        axes.plot(times_s, shares, label=name, color=COLOURS[at], linestyle=LINES[at])
    axes.set_title("Simulated: completion times, median of seeds")
    axes.set_xlabel("Time from arrival to answer (s)")
    axes.set_ylabel("Share of requests")
    axes.set_xscale("log")
    log_ticks(axes.xaxis)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _minutes(axes: Axes, first: dict[str, SchedulerResult]) -> None:
    runs = list(first.values())
    edges = np.arange(len(runs[0].arrivals) + 1)
    axes.stairs(runs[0].arrivals, edges, fill=True, color="#e4e4e4")
    for at, run in enumerate(runs):
        axes.stairs(run.misses, edges, color=COLOURS[at], linestyle=LINES[at], baseline=None)
    axes.set_title(f"Missed deadlines before all arrivals (grey), seed {runs[0].seed}")
    axes.set_xlabel("Minute of arrival")
    axes.set_ylabel("Requests per minute")
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)


def _loads(axes: Axes, runs: dict[str, list[SchedulerResult]]) -> None:
    for at, (name, found) in enumerate(runs.items()):
        times_s = [each.load_s for each in found]
        mean_s = float(np.mean(times_s))
        spread = [[mean_s - min(times_s)], [max(times_s) - mean_s]]
        axes.barh(name, mean_s, xerr=spread, color=COLOURS[at], ecolor="#555555", height=0.6)
    axes.invert_yaxis()
    axes.set_title("Time spent on loads, all machines: mean, least and most of seeds")
    axes.set_xlabel("Seconds")
    axes.grid(visible=False, axis="y")
