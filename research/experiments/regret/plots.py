"""The plot of the experiment regret: every policy over the cells."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from research.experiments.regret.ratios import ByPolicy, regrets
from research.experiments.regret.runs import FIXED, POLICIES
from research.report.style import COLOURS, DPI, LINES, legend_below, one_axes, styled

_SHOWN: Final = tuple(name for name in POLICIES if name != FIXED[1])


def draw(found: Mapping[int, ByPolicy], folder: Path) -> Path:
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
