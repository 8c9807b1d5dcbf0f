"""Plots of the experiment regret: heat maps of `auto`'s regret, and every policy over the cells."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from load.report.style import COLOURS, DPI, LINES, legend_below, one_axes, styled
from research.experiments.regret.cells import RegretCell
from research.experiments.regret.ratios import ByPolicy, Regret, geometric_mean, regrets
from research.experiments.regret.runs import AUTO, FIXED, POLICIES

Bin = Callable[[RegretCell], int]


_MEMORY: Final = (0.0, 0.4, 0.6, 0.85, 1.1, 9.9)
_MEMORY_LABELS: Final = ("< 40 %", "40-60 %", "60-85 %", "85-110 %", "> 110 %")
_RATIOS: Final = (0.0, 3.0, 10.0, 30.0, 100.0, 1e9)
_RATIO_LABELS: Final = ("1-3", "3-10", "10-30", "30-100", "100-400")
_SLOTS: Final = (0, 2, 3, 5, 99)
_SLOT_LABELS: Final = ("1", "2", "3-4", "5 or more")
_BURSTS: Final = (0.0, 1.5, 3.0, 4.0, 99.0)
_ON_OFF: Final = 4
_BURST_LABELS: Final = ("Poisson", "cv 2-3", "cv 3-4", "cv 4-5", "on-off")
_SHOWN: Final = tuple(name for name in POLICIES if name != FIXED[1])
_LIMIT: Final = 30.0
"""Percent at which the colours end."""


def draw(
    found: Mapping[int, ByPolicy], chosen: Mapping[int, RegretCell], folder: Path
) -> tuple[Path, ...]:
    paths = [_draw_policies(found, folder)]
    if any(AUTO in runs for runs in found.values()):
        paths.append(_draw_maps(regrets(found, AUTO, FIXED), chosen, folder))
    return tuple(paths)


def _draw_maps(found: Sequence[Regret], chosen: Mapping[int, RegretCell], folder: Path) -> Path:
    """`heat.png`: geometric mean of the ratios of mean latencies, by group of cells."""
    path = folder / "heat.png"
    with styled():
        figure = Figure(figsize=(10.5, 4.4))
        left, right = figure.subplots(1, 2)
        _draw_map(
            left,
            found,
            chosen,
            x=(lambda cell: _bin(_RATIOS, cell.load_ratio), _RATIO_LABELS, "load over inference"),
            y=(lambda cell: _bin(_MEMORY, cell.memory), _MEMORY_LABELS, "memory for the models"),
        )
        _draw_map(
            right,
            found,
            chosen,
            x=(_burstiness, _BURST_LABELS, "arrivals"),
            y=(lambda cell: _bin(_SLOTS, np.median(cell.slots)), _SLOT_LABELS, "slots per pod"),
        )
        figure.suptitle(
            "Simulated: mean latency of auto against the best fixed policy of each cell, in %\n"
            "(blue: better), geometric mean; small: number of cells",
            x=0.01,
            ha="left",
        )
        figure.savefig(path, format="png", dpi=DPI)
    return path


def _bin(edges: Sequence[float], value: float) -> int:
    return int(np.searchsorted(edges, value, side="right")) - 1


def _burstiness(cell: RegretCell) -> int:
    return _ON_OFF if cell.arrivals == "on-off" else _bin(_BURSTS, cell.cv)


def _draw_map(
    axes: Axes,
    found: Sequence[Regret],
    chosen: Mapping[int, RegretCell],
    *,
    x: tuple[Bin, Sequence[str], str],
    y: tuple[Bin, Sequence[str], str],
) -> None:
    (column, columns, x_title), (row, rows, y_title) = x, y
    ratios: dict[tuple[int, int], list[float]] = {}
    for each in found:
        cell = chosen[each.cell]
        ratios.setdefault((row(cell), column(cell)), []).append(each.mean.ratio)
    percent = np.full((len(rows), len(columns)), np.nan)
    for place, values in ratios.items():
        percent[place] = 100 * (geometric_mean(values) - 1)
        axes.text(
            place[1], place[0], f"{percent[place]:+.0f}\n", ha="center", va="center", fontsize=10
        )
        axes.text(place[1], place[0] + 0.22, str(len(values)), ha="center", va="center", fontsize=7)
    axes.imshow(
        np.clip(percent, -_LIMIT, _LIMIT),
        cmap="RdBu_r",
        aspect="auto",
        alpha=0.7,
        norm=TwoSlopeNorm(0.0, -_LIMIT, _LIMIT),
    )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(x_title)
    axes.set_ylabel(y_title)
    axes.grid(visible=False)


def _draw_policies(found: Mapping[int, ByPolicy], folder: Path) -> Path:
    """`policies.png`: the ratios of each policy, from its best cell to its worst."""
    path = folder / "policies.png"
    with styled():
        figure, axes = one_axes(
            "Simulated: mean latency over that of the best fixed policy of each cell",
            "Share of the cells",
            "Ratio",
        )
        for number, name in enumerate(_SHOWN):
            ratios = sorted(each.mean.ratio for each in regrets(found, name, FIXED))
            if ratios:
                shares = np.linspace(0, 1, len(ratios))
                axes.plot(
                    shares, ratios, label=name, color=COLOURS[number], linestyle=LINES[number]
                )
        axes.axhline(1.0, color="#555555", linewidth=0.8)
        axes.set_yscale("log")
        axes.set_ylim(0.2, 20)
        axes.set_yticks([0.25, 0.5, 1, 2, 4, 8, 16], ["0.25", "0.5", "1", "2", "4", "8", "16"])
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        legend_below(axes)
        figure.savefig(path, format="png", dpi=DPI)
    return path
