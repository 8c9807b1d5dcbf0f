"""Where requests spend their time under chosen plans: figures 6.6, 6.13, 6.17, 6.19, simulated."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from research.experiments.elvinger.stages import Stages
from research.experiments.harness.experiment import Cell, Table
from research.report.style import COLOURS, DPI, MARKERS, styled

_SHOWN_STAGES: Final = ("transfer", "build", "queue", "inference")


@dataclass(frozen=True, slots=True)
class ShownModel:
    """The requests of one model under one plan."""

    figure: str
    plan: str
    model: str
    stages: Stages
    slo_s: float


def stages_table(shown: Sequence[ShownModel]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for each in shown:
        p95_s = each.stages.p95_s()
        sizes = [size for _, size in each.stages.batches]
        rows.append(
            (
                each.figure,
                each.plan,
                each.model,
                *(round(1000 * p95_s[n], 1) for n in p95_s),
                round(fmean(sizes), 1) if sizes else None,
            )
        )
    return Table(
        "95th percentiles of the stages of requests, simulated, in ms",
        ("figure", "plan", "model", *_SHOWN_STAGES, "total", "mean batch"),
        tuple(rows),
    )


def draw_stages(shown: Sequence[ShownModel], folder: Path) -> Path:
    """`stages.png`: per figure the stages, the distribution of latencies, and sizes of batches."""
    path = folder / "stages.png"
    figures = list(dict.fromkeys(each.figure for each in shown))
    with styled():
        figure = Figure(figsize=(11.0, 2.7 * len(figures)))
        grid = figure.subplots(len(figures), 3, squeeze=False)
        for name, (bars, latencies, sizes) in zip(figures, grid, strict=True):
            mine = [each for each in shown if each.figure == name]
            _draw_bars(bars, mine)
            _draw_latencies(latencies, mine)
            _draw_sizes(sizes, mine)
            bars.set_title(f"figure {name}: 95th percentile by stage", fontsize=9)
        figure.savefig(path, format="png", dpi=DPI)
    return path


def _name(each: ShownModel) -> str:
    return f"{each.model}, {each.plan}"


def _draw_bars(axes: Axes, shown: Sequence[ShownModel]) -> None:
    left = [0.0] * len(shown)
    for at, stage in enumerate(_SHOWN_STAGES):
        width = [1000 * each.stages.p95_s()[stage] for each in shown]
        axes.barh(range(len(shown)), width, left=left, color=COLOURS[at], label=stage)
        left = [start + more for start, more in zip(left, width, strict=True)]
    axes.set_yticks(range(len(shown)), [_name(each) for each in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("ms", fontsize=8)
    axes.legend(fontsize=7)


def _draw_latencies(axes: Axes, shown: Sequence[ShownModel]) -> None:
    for at, each in enumerate(shown):
        times = sorted(1000 * value for value in each.stages.total_s)
        parts = [(place + 1) / len(times) for place in range(len(times))]
        axes.plot(times, parts, color=COLOURS[at % len(COLOURS)], linewidth=1.2, label=_name(each))
    slo_ms = 1000 * max(each.slo_s for each in shown)
    axes.axvline(slo_ms, color="#888888", linewidth=0.8)
    axes.set_xlim(0, 3 * slo_ms)
    axes.set_xlabel("latency, ms (grey: the SLO)", fontsize=8)
    axes.set_ylabel("part of the requests", fontsize=8)
    axes.legend(fontsize=6)


def _draw_sizes(axes: Axes, shown: Sequence[ShownModel]) -> None:
    for at, each in enumerate(shown):
        ends, sizes = zip(*each.stages.batches, strict=True) if each.stages.batches else ((), ())
        axes.plot(
            ends,
            sizes,
            linestyle="",
            marker=MARKERS[at % len(MARKERS)],
            markersize=2,
            color=COLOURS[at % len(COLOURS)],
        )
    axes.set_xlabel("time, s", fontsize=8)
    axes.set_ylabel("batch size", fontsize=8)
    axes.set_ylim(bottom=0)
