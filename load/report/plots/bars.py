"""One figure per run, as bars: loading time, cold starts by tier, stages, fairness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from load.report.loading import loading_s
from load.report.style import (
    COLOURS,
    HATCHES,
    MARKERS,
    TIERS,
    LeftOut,
    Plot,
    legend_below,
    log_ticks,
    one_axes,
    short,
)
from load.report.summary import fairness, good_shares
from load.report.times import axis_unit, spoken
from load.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from load.report.run import Run

_MOST_DOTS: Final = 200


def loading_time(runs: Sequence[Run]) -> Plot | LeftOut:
    """Total time that pods spent on loading models."""
    heading = "Total loading time"
    told = [run for run in runs if (run.predict_pod.codes >= 0).any()]
    if not told:
        return LeftOut(heading, "the answers name no pod")
    values = [loading_s(run) for run in told]
    least, most = int(np.argmin(values)), int(np.argmax(values))
    title = (
        "No model was loaded"
        if values[most] == 0
        else f"Models load for {spoken(values[least])} in all"
        if values[least] == values[most]
        else f"{short(told[least].name)} loads for {spoken(values[least])}, "
        f"{short(told[most].name)} for {spoken(values[most])}"
    )
    unit_s, unit = axis_unit(values[most])
    figure, axes = one_axes(title, f"Loading time over all pods ({unit})", "",
                            height_in=_height(told))  # fmt: skip
    for row, (run, value) in enumerate(zip(told, values, strict=True)):
        index = _index(runs, run)
        axes.barh(row, value / unit_s, color=COLOURS[index], hatch=HATCHES[index],
                  edgecolor="white", linewidth=0)  # fmt: skip
        axes.annotate(f" {spoken(value)}", (value / unit_s, row), va="center", fontsize=9.5)
    _name_rows(axes, told, values[most] / unit_s)
    caption = (
        "Time during which a pod was loading a model that a request waited for, added up over "
        "models and pods; requests that wait for the same load count once. Not to be read apart "
        "from the other plots (Blinowski et al. 2024, figure 5.6)."
    )
    return Plot("loading_time", heading, caption, figure)


def cold_starts(runs: Sequence[Run]) -> Plot | LeftOut:
    """Requests that waited for a model, by the tier it came from."""
    heading = "Cold starts by tier"
    told = [run for run in runs if (run.start.codes >= 0).any()]
    if not told:
        return LeftOut(heading, "the answers do not say how they started")
    rates = [float(run.is_cold.sum() / run.requests) for run in told]
    span = f"{min(rates):.2%}" + ("" if min(rates) == max(rates) else f" to {max(rates):.2%}")
    figure, axes = one_axes(
        f"{span} of the requests start cold" if any(rates) else "No request starts cold",
        "Requests that waited for a load", "",
        height_in=_height(told) + 0.3,
    )  # fmt: skip
    left = np.zeros(len(told))
    for index, (tier, colour) in enumerate(TIERS.items()):
        values = np.array([run.start.counts().get(tier, 0) for run in told], dtype=np.float64)
        axes.barh(range(len(told)), values, left=left, color=colour, label=f"from {tier}",
                  hatch=HATCHES[index], edgecolor="white", linewidth=0)  # fmt: skip
        left += values
    for row, (total, rate) in enumerate(zip(left, rates, strict=True)):
        axes.annotate(f" {total:,.0f} ({rate:.2%})", (total, row), va="center", fontsize=9.5)
    _name_rows(axes, told, float(left.max()))
    legend_below(axes)
    caption = (
        "Requests that had to wait until their model was on the device, by the tier its weights "
        "came from: host memory, the node's disk, object storage. Those that joined a load under "
        "way are counted, too."
    )
    return Plot("cold_starts", heading, caption, figure)


def stages(runs: Sequence[Run]) -> Plot | LeftOut:
    """Mean milliseconds per request in each stage, on a logarithmic axis."""
    heading = "Where the time goes"
    means = [
        [float(np.nanmean(run.stages_ms[stage])) if _is_told(run, stage) else np.nan
         for stage in STAGES]
        for run in runs
    ]  # fmt: skip
    if np.isnan(means).all():
        return LeftOut(heading, "the answers carry no server-timing")
    total = np.nansum(means[0])
    largest = int(np.nanargmax(means[0]))
    figure, axes = one_axes(
        f"{short(runs[0].name)}: {means[0][largest] / total:.0%} of the time is {STAGES[largest]}"
        if total > 0 else "Stages",
        "Stage", "Mean time per request (ms)",
    )  # fmt: skip
    width = 0.8 / len(runs)
    for index, (run, values) in enumerate(zip(runs, means, strict=True)):
        shown = [value if value > 0 else np.nan for value in values]
        axes.bar(
            np.arange(len(STAGES)) - 0.4 + width * (index + 0.5), shown, width=width,
            label=short(run.name), color=COLOURS[index], hatch=HATCHES[index], edgecolor="white",
            linewidth=0,
        )  # fmt: skip
    axes.set_xticks(range(len(STAGES)), STAGES)
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    axes.grid(visible=False, axis="x")
    legend_below(axes)
    caption = (
        "Means over the requests whose answers tell the stage (server-timing), on a logarithmic "
        "axis as in Liu 2025, figure 6.3. A stage that took no time has no bar."
    )
    return Plot("stages", heading, caption, figure)


def tenants(runs: Sequence[Run]) -> Plot | LeftOut:
    """Jain's index, and the share of each tenant's requests that were served in time."""
    heading = "Fairness between tenants"
    told = [run for run in runs if fairness(run) is not None]
    if not told:
        return LeftOut(heading, "there is one tenant only, or nobody was served")
    indices = {run.name: fairness(run) or 0.0 for run in told}
    worst = min(told, key=lambda run: (indices[run.name], run.name))
    shares = good_shares(worst)
    least, most = min(shares.values()), max(shares.values())
    figure, axes = one_axes(
        f"{short(worst.name)} serves between {least:.1%} and {most:.1%} of a tenant's requests "
        "in time" if least < most else "All tenants are served alike",
        "Share of a tenant's requests served in time", "", height_in=_height(told),
    )  # fmt: skip
    for row, run in enumerate(told):
        dots = np.array(sorted(good_shares(run).values()))
        if len(dots) > _MOST_DOTS:
            dots = np.quantile(dots, np.linspace(0, 1, _MOST_DOTS))
        index = _index(runs, run)
        axes.plot(dots, np.full(len(dots), row), MARKERS[index], color=COLOURS[index], alpha=0.6,
                  markeredgewidth=0)  # fmt: skip
        axes.annotate(f"Jain {indices[run.name]:.4f}", (1.03, row), va="center", fontsize=9.5)
    _name_rows(axes, told, 1.0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if value <= 1 else "")
    caption = (
        "One mark per tenant. Jain, Chiu and Hawe's index over these shares: 1 is even, 1/n means "
        "that one of n tenants gets everything."
    )
    return Plot("fairness", heading, caption, figure)


def _is_told(run: Run, stage: str) -> bool:
    return not bool(np.isnan(run.stages_ms[stage]).all())


def _height(runs: Sequence[Run]) -> float:
    return 1.5 + 0.42 * len(runs)


def _index(runs: Sequence[Run], run: Run) -> int:
    """The run's place among all, which gives its colour."""
    return [each.name for each in runs].index(run.name)


def _name_rows(axes: Axes, told: Sequence[Run], most: float) -> None:
    axes.set_yticks(range(len(told)), [short(run.name) for run in told])
    axes.set_ylim(len(told) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * most or 1.0)
    axes.grid(visible=False, axis="y")
