"""Arrivals over time and by model (Blinowski et al. 2024, figures 5.2 and 5.3)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from load.report.style import (
    COLOURS,
    LINES,
    MARKERS,
    Plot,
    count_ticks,
    labels,
    legend_below,
    one_axes,
    shortened,
)
from load.report.times import axis_unit, bin_counts, bin_edges, bin_length_s, bin_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load.report.run import Run

_MAX_MODELS: Final = 15
_OTHERS: Final = "all others"


def arrivals(runs: Sequence[Run]) -> Plot:
    """Requests per bin over time; runs with equal arrivals are drawn once."""
    duration_s = max(run.offered_s for run in runs)
    length_s = bin_length_s(duration_s)
    bins = max(1, math.ceil(duration_s / length_s))
    unit_s, unit = axis_unit(duration_s)
    series = [(run, bin_counts(run.scheduled_s, length_s, bins)) for run in runs]
    peak = max(float(values.max()) for _, values in series)
    same = all(np.array_equal(series[0][1], values) for _, values in series)
    each, run_labels = bin_name(length_s), labels([run.name for run in runs])
    figure, axes = one_axes(
        f"Up to {peak:,.0f} {'request arrives' if peak == 1 else 'requests arrive'} per {each}",
        f"Time since start ({unit})", f"Requests per {each}",
    )  # fmt: skip
    for index, (run, values) in enumerate(series[:1] if same else series):
        label = "all runs" if same and len(runs) > 1 else run_labels[run.name]
        axes.stairs(
            values, bin_edges(length_s, bins, unit_s), label=label, color=COLOURS[index],
            linestyle=LINES[index], linewidth=1.6, fill=False, baseline=None,
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    count_ticks(axes.yaxis)
    axes.set_xlim(0, max(duration_s, length_s) / unit_s)
    legend_below(axes)
    caption = (
        "Arrivals in the trace, whether they were sent in time or not "
        "(Blinowski et al. 2024, figure 5.2)."
    )
    return Plot("arrivals", "Arrivals", caption, figure)


def workload(runs: Sequence[Run]) -> Plot:
    """Requests per model; the rarest are combined."""
    totals: dict[str, int] = {}
    for run in runs:
        for name, count in run.model.counts().items():
            totals[name] = totals.get(name, 0) + count
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    shown = ranked[:_MAX_MODELS]
    has_others = len(ranked) > len(shown)
    rows = [*shown, *([_OTHERS] if has_others else [])]
    share = totals[ranked[0]] / sum(totals.values())
    figure, axes = one_axes(
        f"{shortened(ranked[0])} gets {share:.0%} of the requests; there are {len(ranked)} models"
        if len(ranked) > 1 else f"All requests go to {shortened(ranked[0])}",
        "Requests", "", height_in=1.2 + 0.32 * len(rows),
    )  # fmt: skip
    run_labels = labels([run.name for run in runs])
    named = {run.name: _row_counts(run, shown, has_others) for run in runs}
    same = len({tuple(values) for values in named.values()}) == 1
    for index, (name, values) in enumerate(list(named.items())[:1] if same else named.items()):
        label = "all runs" if same and len(runs) > 1 else run_labels[name]
        axes.plot(values, np.arange(len(rows)) + _shift(index, 1 if same else len(runs)),
                  MARKERS[index], color=COLOURS[index], label=label)  # fmt: skip
    axes.set_yticks(np.arange(len(rows)), [*labels(shown).values(), *rows[len(shown) :]])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(left=0)
    count_ticks(axes.xaxis)
    legend_below(axes)
    others = f"; {_OTHERS}: {len(ranked) - len(shown)} models" if has_others else ""
    caption = f"Requests of each model (Blinowski et al. 2024, figure 5.3){others}."
    return Plot("workload", "Workload by model", caption, figure)


def _row_counts(run: Run, shown: Sequence[str], has_others: bool) -> list[int]:
    counts = run.model.counts()
    values = [counts.get(name, 0) for name in shown]
    return [*values, run.requests - sum(values)] if has_others else values


def _shift(index: int, series: int) -> float:
    """Offset within a row, so that equal counts do not overlap."""
    return 0.5 * ((index + 0.5) / series - 0.5)
