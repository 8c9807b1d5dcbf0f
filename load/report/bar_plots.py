"""Plots per run: bars of cold starts and stages."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from load.report.run import Run
from load.report.style import (
    COLOURS,
    HATCHES,
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
from registry.domain.pod import STAGES

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
