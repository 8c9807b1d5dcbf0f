"""Plots of the experiment warsaw: completion, misses, throughput, loads, and machines in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from research.experiments.harness.axes import rows_of_axes
from research.experiments.schedulers.scheduler_configs import SCHEDULERS, SHIPPED
from research.experiments.schedulers.usage_plot import draw_usage, usage_legend
from research.report.style import COLOURS, DPI, LINES, legend_below, log_ticks, styled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from research.experiments.schedulers.runs import SchedulerResult

_GREY: Final = "#e4e4e4"


def draw_schedulers(results: Sequence[SchedulerResult], folder: Path) -> Path:
    """`schedulers.png`; plots by minute are of the first seed."""
    path = folder / "schedulers.png"
    runs = {
        name: [each for each in results if each.scheduler == name]
        for name in SCHEDULERS
        if name != SHIPPED
    }
    first = [found[0] for found in runs.values()]
    with styled():
        figure, rows = rows_of_axes([3.4, 3.0, 3.0, 2.8])
        completion, misses, throughput, loads = rows
        _draw_completion(completion, runs)
        _draw_minutes(
            misses,
            first,
            [each.misses for each in first],
            "Missed deadlines, by minute of arrival, against all arrivals (grey)",
        )
        _draw_minutes(
            throughput,
            first,
            [each.answered for each in first],
            "Throughput: responses, against all arrivals (grey)",
        )
        _draw_loads(loads, runs)
        legend_below(completion)
        figure.savefig(path, format="png", dpi=DPI)
    return path


def draw_machines(
    results: Sequence[SchedulerResult], window_s: tuple[float, float], folder: Path
) -> Path:
    """`machines.png`: one machine under each scheduler whose use was recorded (6.3 and 6.12)."""
    path = folder / "machines.png"
    begin_s, end_s = window_s
    with styled():
        figure, rows = rows_of_axes([0.85 + 0.24 * len(each.usage) for each in results])
        for number, (axes, each) in enumerate(zip(rows, results, strict=True)):
            draw_usage(axes, each.usage, end_s - begin_s, 60.0, COLOURS[0], start_s=begin_s)
            machine = each.usage[0].pod
            axes.set_title(f"{each.scheduler}: {machine}, {_loads(each, begin_s, end_s)} loads")
            if number == len(rows) - 1:
                axes.set_xlabel("Minute")
        usage_legend(rows[-1], COLOURS[0])
        figure.savefig(path, format="png", dpi=DPI)
    return path


def _loads(run: SchedulerResult, begin_s: float, end_s: float) -> int:
    begins = np.concatenate([each.loading.begins for each in run.usage])
    return int(((begins >= begin_s) & (begins < end_s)).sum())


def _draw_completion(axes: Axes, runs: Mapping[str, list[SchedulerResult]]) -> None:
    for number, (name, found) in enumerate(runs.items()):
        times_s = np.median([each.curve_s for each in found], axis=0)
        shares = np.linspace(0, 1, len(times_s))
        axes.plot(times_s, shares, label=name, color=COLOURS[number], linestyle=LINES[number])
    axes.set_title("Simulated: completion times, median of seeds")
    axes.set_xlabel("Time from arrival to response (s)")
    axes.set_ylabel("Share of requests")
    axes.set_xscale("log")
    log_ticks(axes.xaxis)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _draw_minutes(
    axes: Axes, runs: Sequence[SchedulerResult], counts: Sequence[Sequence[int]], title: str
) -> None:
    edges = np.arange(len(runs[0].arrivals) + 1)
    axes.stairs(runs[0].arrivals, edges, fill=True, color=_GREY)
    for number, by_minute in enumerate(counts):
        colour, line = COLOURS[number], LINES[number]
        axes.stairs(by_minute, edges, color=colour, linestyle=line, baseline=None)
    axes.set_title(f"{title}, seed {runs[0].seed}")
    axes.set_xlabel("Minute")
    axes.set_ylabel("Requests per minute")
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)


def _draw_loads(axes: Axes, runs: Mapping[str, list[SchedulerResult]]) -> None:
    for number, (name, found) in enumerate(runs.items()):
        times_s = [each.load_s for each in found]
        mean_s = float(np.mean(times_s))
        error = [[mean_s - min(times_s)], [max(times_s) - mean_s]]
        axes.barh(name, mean_s, xerr=error, color=COLOURS[number], ecolor="#555555", height=0.6)
    axes.invert_yaxis()
    axes.set_title("Time spent on loads, all machines: mean, lowest and highest of seeds")
    axes.set_xlabel("Seconds")
    axes.grid(visible=False, axis="y")
