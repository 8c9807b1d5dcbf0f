"""Plots of requests over time, completion times and deadline misses, and of runs as bars.

The former after Blinowski et al. 2024, figures 5.2 to 5.5.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from load.report.run import Floats, Run
from registry.domain.pod import STAGES
from research.report.style import (
    COLOURS,
    HATCHES,
    LINES,
    TIERS,
    LeftOut,
    Plot,
    count_ticks,
    label_rows,
    labels,
    legend_below,
    log_ticks,
    not_shown_note,
    one_axes,
    row_height_in,
)
from research.report.time_bins import axis_unit, bin_counts, bin_edges, bin_length_s, bin_name


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
        f"Time since start ({unit})",
        f"Requests per {each}",
    )
    for index, (run, values) in enumerate(series[:1] if same else series):
        label = "all runs" if same and len(runs) > 1 else run_labels[run.name]
        axes.stairs(
            values,
            bin_edges(length_s, bins, unit_s),
            label=label,
            color=COLOURS[index],
            linestyle=LINES[index],
            linewidth=1.6,
            fill=False,
            baseline=None,
        )
    axes.set_ylim(bottom=0)
    count_ticks(axes.yaxis)
    axes.set_xlim(0, max(duration_s, length_s) / unit_s)
    legend_below(axes)
    caption = (
        "Arrivals in the trace, whether they were sent in time or not "
        "(Blinowski et al. 2024, figure 5.2)."
    )
    return Plot("arrivals", "Arrivals", caption, figure)


_POINTS: Final = 1500
_MIN_S: Final = 1e-4


def completion_times(runs: Sequence[Run]) -> Plot | LeftOut:
    """Share of all requests answered within a time, on a logarithmic axis."""
    heading = "Completion times"
    curves = [(run, np.sort(run.latency_s[run.is_ok])) for run in runs]
    if not any(len(values) for _, values in curves):
        return LeftOut(heading, "no request was answered")
    run_labels = labels([run.name for run in runs])
    figure, axes = one_axes(
        heading, "Time from scheduled arrival to last byte (s)", "Share of all requests"
    )
    for index, (run, values) in enumerate(curves):
        at, share = _curve(values, run.requests)
        failed = 1 - len(values) / run.requests
        label = run_labels[run.name] + (f" ({failed:.1%} not answered)" if failed else "")
        axes.step(
            at,
            share,
            where="post",
            label=label,
            color=COLOURS[index],
            linestyle=LINES[index],
            linewidth=1.8,
        )
    axes.set_xscale("log")
    log_ticks(axes.xaxis)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    legend_below(axes)
    caption = (
        "Cumulative distribution of completion times, counted from the scheduled time, so that "
        "late sends count. A curve that ends below 100 % leaves out failed requests "
        "(Blinowski et al. 2024, figure 5.4)."
    )
    return Plot("completion_times", heading, caption, figure)


def _curve(values: Floats, requests: int) -> tuple[Floats, Floats]:
    """At most 1,500 points of a distribution, denser where it is nearly complete."""
    if not len(values):
        return values, values
    ranks = np.arange(1, len(values) + 1)
    if len(values) > _POINTS:
        even = np.linspace(1, len(values), _POINTS // 2)
        tail = len(values) + 1 - np.geomspace(1, len(values), _POINTS // 2)
        ranks = np.unique(np.concatenate((even, tail)).astype(np.int64))
    at = np.maximum(values[ranks - 1], _MIN_S)
    return np.concatenate((at[:1], at)), np.concatenate(([0.0], ranks / requests))


def deadline_misses(runs: Sequence[Run]) -> Plot | LeftOut:
    """All arrivals, and the requests that missed their deadline, per minute."""
    heading = "Deadline misses"
    if not any(run.has_deadline.any() for run in runs):
        return LeftOut(heading, "no request has a deadline")
    duration_s = max(run.offered_s for run in runs)
    length_s = bin_length_s(duration_s, minutes=True)
    bins = max(1, math.ceil(duration_s / length_s))
    unit_s, unit = axis_unit(duration_s)
    at, each = bin_edges(length_s, bins, unit_s), bin_name(length_s)
    run_labels = labels([run.name for run in runs])
    shown = [run for run in runs if run.has_deadline.any()]
    figure, axes = one_axes(
        heading, f"Time of arrival since start ({unit})", f"Requests per {each}"
    )
    longest = max(runs, key=lambda run: run.requests)
    arrived = bin_counts(longest.scheduled_s, length_s, bins)
    same = all(np.array_equal(arrived, bin_counts(run.scheduled_s, length_s, bins)) for run in runs)
    axes.stairs(
        arrived,
        at,
        fill=True,
        color="#e4e4e4",
        label="all arrivals" if same else f"all arrivals of {run_labels[longest.name]}",
    )
    for index, run in enumerate(runs):
        if not run.has_deadline.any():
            continue
        missed = bin_counts(run.scheduled_s, length_s, bins, run.is_missed)
        axes.stairs(
            missed,
            at,
            label=f"{run_labels[run.name]}: {run.is_missed.sum():,} missed",
            color=COLOURS[index],
            linestyle=LINES[index],
            linewidth=1.8,
            baseline=None,
        )
    axes.set_ylim(bottom=0)
    count_ticks(axes.yaxis)
    axes.set_xlim(0, max(duration_s, length_s) / unit_s)
    legend_below(axes)
    caption = (
        f"Requests per {each} of arrival that were not answered by their deadline, including "
        "failed ones, in front of all arrivals (Blinowski et al. 2024, figure 5.5)."
        f"{not_shown_note(run_labels, shown)}"
    )
    return Plot("deadline_misses", heading, caption, figure)


_FROM: Final = {
    "host": "from the node's memory",
    "disk": "from the node's disk",
    "remote": "from object storage",
}


def cold_starts(runs: Sequence[Run]) -> Plot | LeftOut:
    """Requests that waited for a load, by its source tier."""
    heading = "Cold starts by tier"
    shown = [run for run in runs if (run.start.codes >= 0).any()]
    if not shown:
        return LeftOut(heading, "the records have no start tiers")
    rates = [float(run.is_cold.sum() / run.requests) for run in shown]
    span = f"{min(rates):.2%}" + ("" if min(rates) == max(rates) else f" to {max(rates):.2%}")
    figure, axes = one_axes(
        f"{span} of the requests start cold" if any(rates) else "No request starts cold",
        "Requests that waited for a load",
        "",
        height_in=row_height_in(shown) + 0.3,
    )
    run_labels = labels([run.name for run in runs])
    left = np.zeros(len(shown))
    for index, (tier, colour) in enumerate(TIERS.items()):
        values = np.array([run.start.counts().get(tier, 0) for run in shown], dtype=np.float64)
        axes.barh(
            range(len(shown)),
            values,
            left=left,
            color=colour,
            label=_FROM[tier],
            hatch=HATCHES[index],
            edgecolor="white",
            linewidth=0,
        )
        left += values
    for row, (total, rate) in enumerate(zip(left, rates, strict=True)):
        axes.annotate(f" {total:,.0f} ({rate:.2%})", (total, row), va="center", fontsize=9.5)
    label_rows(axes, run_labels, shown, float(left.max()))
    count_ticks(axes.xaxis)
    legend_below(axes)
    caption = (
        "Requests that waited until their model was on the device, by the tier its weights came "
        "from. Requests that joined a load under way are included."
        f"{not_shown_note(run_labels, shown)}"
    )
    return Plot("cold_starts", heading, caption, figure)


def stages(runs: Sequence[Run]) -> Plot | LeftOut:
    """Mean milliseconds per request in each stage, on a logarithmic axis."""
    heading = "Where the time goes"
    means = [
        [
            float(np.nanmean(run.stages_ms[stage])) if _has_stage(run, stage) else np.nan
            for stage in STAGES
        ]
        for run in runs
    ]
    if np.isnan(means).all():
        return LeftOut(heading, "the responses have no server-timing")
    if not np.nansum(means) > 0:
        return LeftOut(heading, "no request reached a pod")
    shown = [run for run, each in zip(runs, means, strict=True) if not np.isnan(each).all()]
    run_labels = labels([run.name for run in runs])
    figure, axes = one_axes(heading, "Stage", "Mean time per request (ms)")
    width = 0.8 / len(runs)
    for index, (run, values) in enumerate(zip(runs, means, strict=True)):
        heights = [value if value > 0 else np.nan for value in values]
        axes.bar(
            np.arange(len(STAGES)) - 0.4 + width * (index + 0.5),
            heights,
            width=width,
            label=run_labels[run.name],
            color=COLOURS[index],
            hatch=HATCHES[index],
            edgecolor="white",
            linewidth=0,
        )
    axes.set_xticks(range(len(STAGES)), STAGES)
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    axes.grid(visible=False, axis="x")
    legend_below(axes)
    caption = (
        "Means over the requests whose responses have the stage (server-timing), on a logarithmic "
        "axis as in Liu 2025, figure 6.3. Queue: until a pod had a free slot; load: until the "
        "model was on its device; preprocess, infer and postprocess: at the pods; network: to the "
        f"pods and back. A stage that took no time has no bar.{not_shown_note(run_labels, shown)}"
    )
    return Plot("stages", heading, caption, figure)


def _has_stage(run: Run, stage: str) -> bool:
    return not bool(np.isnan(run.stages_ms[stage]).all())
