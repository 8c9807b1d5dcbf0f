"""A figure or a few per run, in rows or columns: cold starts by tier, stages, fairness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from load.report.plots.rows import name_rows, place, row_height
from load.report.style import (
    COLOURS,
    HATCHES,
    MARKERS,
    TIERS,
    LeftOut,
    Plot,
    count_ticks,
    labels,
    legend_below,
    log_ticks,
    not_told,
    one_axes,
)
from load.report.summary import fairness, good_shares
from load.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load.report.run import Run

_MOST_DOTS: Final = 200
_FROM: Final = {
    "host": "from the node's memory",
    "disk": "from the node's disk",
    "remote": "from object storage",
}


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
        height_in=row_height(told) + 0.3,
    )  # fmt: skip
    called = labels([run.name for run in runs])
    left = np.zeros(len(told))
    for index, (tier, colour) in enumerate(TIERS.items()):
        values = np.array([run.start.counts().get(tier, 0) for run in told], dtype=np.float64)
        axes.barh(range(len(told)), values, left=left, color=colour, label=_FROM[tier],
                  hatch=HATCHES[index], edgecolor="white", linewidth=0)  # fmt: skip
        left += values
    for row, (total, rate) in enumerate(zip(left, rates, strict=True)):
        axes.annotate(f" {total:,.0f} ({rate:.2%})", (total, row), va="center", fontsize=9.5)
    name_rows(axes, called, told, float(left.max()))
    count_ticks(axes.xaxis)
    legend_below(axes)
    caption = (
        "Requests that had to wait until their model was on the device, by the tier its weights "
        f"came from. Those that joined a load under way are counted, too.{not_told(called, told)}"
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
    if not np.nansum(means) > 0:
        return LeftOut(heading, "no request came to a pod")
    told = [run for run, each in zip(runs, means, strict=True) if not np.isnan(each).all()]
    called = labels([run.name for run in runs])
    figure, axes = one_axes(
        _stages_title(called, runs, means), "Stage", "Mean time per request (ms)"
    )
    width = 0.8 / len(runs)
    for index, (run, values) in enumerate(zip(runs, means, strict=True)):
        shown = [value if value > 0 else np.nan for value in values]
        axes.bar(
            np.arange(len(STAGES)) - 0.4 + width * (index + 0.5), shown, width=width,
            label=called[run.name], color=COLOURS[index], hatch=HATCHES[index],
            edgecolor="white", linewidth=0,
        )  # fmt: skip
    axes.set_xticks(range(len(STAGES)), STAGES)
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    axes.grid(visible=False, axis="x")
    legend_below(axes)
    caption = (
        "Means over the requests whose answers tell the stage (server-timing), on a logarithmic "
        "axis as in Liu 2025, figure 6.3. Queue: until a pod had a place; load: until the model "
        "was on its device; preprocess, infer and postprocess: at the pods; network: the way to "
        f"the pods and back. A stage that took no time has no bar.{not_told(called, told)}"
    )
    return Plot("stages", heading, caption, figure)


def _stages_title(
    called: Mapping[str, str], runs: Sequence[Run], means: Sequence[Sequence[float]]
) -> str:
    """What the first run that tells its stages spends most on."""
    run, values = next(
        (run, values) for run, values in zip(runs, means, strict=True) if np.nansum(values) > 0
    )
    largest = int(np.nanargmax(values))
    share = values[largest] / np.nansum(values)
    return f"{called[run.name]}: {share:.0%} of the time is {STAGES[largest]}"


def tenants(runs: Sequence[Run]) -> Plot | LeftOut:
    """Jain's index, and the share of each tenant's requests that were served in time."""
    heading = "Fairness between tenants"
    told = [run for run in runs if fairness(run) is not None]
    if not told:
        return LeftOut(heading, "there is one tenant only, or nobody was served")
    called = labels([run.name for run in runs])
    indices = {run.name: fairness(run) or 0.0 for run in told}
    worst = min(told, key=lambda run: (indices[run.name], run.name))
    shares = good_shares(worst)
    least, most = min(shares.values()), max(shares.values())
    figure, axes = one_axes(
        f"{called[worst.name]} serves between {least:.1%} and {most:.1%} of a tenant's requests "
        "in time" if least < most else "All tenants are served alike",
        "Share of a tenant's requests served in time", "", height_in=row_height(told),
    )  # fmt: skip
    for row, run in enumerate(told):
        dots = np.array(sorted(good_shares(run).values()))
        if len(dots) > _MOST_DOTS:
            dots = np.quantile(dots, np.linspace(0, 1, _MOST_DOTS))
        index = place(runs, run)
        axes.plot(dots, np.full(len(dots), row), MARKERS[index], color=COLOURS[index], alpha=0.6,
                  markeredgewidth=0)  # fmt: skip
        axes.annotate(f"Jain {indices[run.name]:.4f}", (1.03, row), va="center", fontsize=9.5)
    name_rows(axes, called, told, 1.0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if value <= 1 else "")
    caption = (
        "One mark per tenant. Jain, Chiu and Hawe's index over these shares: 1 is even, 1/n means "
        f"that one of n tenants gets everything.{not_told(called, told)}"
    )
    return Plot("fairness", heading, caption, figure)


def _is_told(run: Run, stage: str) -> bool:
    return not bool(np.isnan(run.stages_ms[stage]).all())
