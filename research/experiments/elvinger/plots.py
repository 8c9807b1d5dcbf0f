"""Plots of plans after Elvinger 2024: GPUs with their models, and goodput by planner."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autoscaler.placement.plan import Placement
from autoscaler.placement.problem import Profiles
from research.experiments.elvinger.cells import ElvingerCell, StatedPlan
from research.report.style import COLOURS, DPI, HATCHES, LINES, MARKERS, styled

_COLUMNS: Final = 2
_NARROW: Final = 25
"""Width of a bar, in %, up to which its text has two small lines."""


def draw_plans(
    stated: Sequence[tuple[StatedPlan, Placement]], profiles: Profiles, folder: Path
) -> Path:
    """`plans.png`: achieved occupancy on each GPU (WSM for `wsm-milp`), by model and batch."""
    path = folder / "plans.png"
    models = sorted({each.model for _, plan in stated for each in plan.replicas})
    colours = {model: COLOURS[at % len(COLOURS)] for at, model in enumerate(models)}
    rows = -(-len(stated) // _COLUMNS)
    with styled():
        figure = Figure(figsize=(9.0, 2.1 * rows))
        axes = figure.subplots(rows, _COLUMNS, squeeze=False)
        for (each, plan), one in zip(stated, axes.ravel(), strict=False):
            _draw_plan(one, each, plan, profiles, colours)
        figure.savefig(path, format="png", dpi=DPI)
    return path


def _draw_plan(
    axes: Axes, stated: StatedPlan, plan: Placement, profiles: Profiles, colours: dict[str, str]
) -> None:
    accelerators = stated.cell.accelerators()
    is_wsm = stated.planner == "wsm-milp"
    for row, gpu in enumerate(accelerators):
        left = 0.0
        for replica in plan.replicas:
            if replica.accelerator != gpu.name:
                continue
            point = profiles.point(replica.model, gpu.kind, replica.batch_size)
            assert point is not None
            width = point.sm_utilization_pct if is_wsm else point.occupancy_pct
            axes.barh(row, width, left=left, color=colours[replica.model], alpha=0.5)
            axes.annotate(
                f"{replica.model}{' ' if width > _NARROW else chr(10)}x {replica.batch_size}",
                (left + width / 2, row),
                ha="center",
                va="center",
                fontsize=7 if width > _NARROW else 4.5,
            )
            left += width
    axes.set_yticks(range(len(accelerators)), [f"GPU {at}" for at in range(len(accelerators))])
    axes.set_ylim(len(accelerators) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_title(f"{stated.planner}: {plan.total_rps:.2f} req/s ({stated.where})", fontsize=8)
    axes.set_xlabel("SM utilisation, %" if is_wsm else "achieved occupancy, %", fontsize=8)


@dataclass(frozen=True, slots=True)
class GoodputPoint:
    """A planner's goodput in one cell, in req/s."""

    cell: ElvingerCell
    planner: str
    line_rps: float
    dotted_rps: float


def draw_goodput(
    points: Sequence[GoodputPoint], planners: Sequence[str], folder: Path
) -> tuple[Path, ...]:
    """`goodput.png`: a line and a dotted line per planner over GPUs or load, by figure."""
    path = folder / "goodput.png"
    figures = list(dict.fromkeys(each.cell.figure for each in points))
    rows = -(-len(figures) // _COLUMNS)
    with styled():
        figure = Figure(figsize=(9.0, 2.6 * rows + 0.5))
        axes = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for name, one in zip(figures, axes, strict=False):
            _draw_figure(one, name, points, planners)
        for unused in axes[len(figures) :]:
            unused.set_visible(False)
        handles, texts = axes[0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=4, fontsize=8.5)
        figure.savefig(path, format="png", dpi=DPI)
    return (path,)


def _draw_figure(
    axes: Axes, name: str, points: Sequence[GoodputPoint], planners: Sequence[str]
) -> None:
    here = [each for each in points if each.cell.figure == name]
    loads = sorted({(each.cell.x, each.cell.total_rps) for each in here})
    axes.plot(*zip(*loads, strict=True), color="#bbbbbb", label="load")
    for at, planner in enumerate(planners):
        mine = sorted((e for e in here if e.planner == planner), key=lambda e: e.cell.x)
        places = [each.cell.x for each in mine]
        colour, marker = COLOURS[at % len(COLOURS)], MARKERS[at % len(MARKERS)]
        axes.plot(
            places,
            [each.line_rps for each in mine],
            label=planner,
            markersize=4,
            linewidth=1.2,
            color=colour,
            marker=marker,
        )
        axes.plot(
            places,
            [each.dotted_rps for each in mine],
            linestyle=LINES[3],
            color=colour,
            linewidth=0.8,
        )
    axes.set_ylim(bottom=0)
    axes.set_title(f"figure {name}", fontsize=9)
    axes.set_xlabel("load, req/s" if loads[-1][0] > len(HATCHES) + 1 else "GPUs", fontsize=8)
    axes.set_ylabel("goodput, req/s", fontsize=8)
