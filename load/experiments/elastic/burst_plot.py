"""The plot of the burst: the share of the models that have answered, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from load.report.style import COLOURS, DPI, LINES, legend_below, one_axes, styled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from load.experiments.elastic.bursting import Burst, BurstTask

_HEIGHT_IN: Final = 3.6


def draw(outcomes: Mapping[BurstTask, Burst], tasks: Mapping[str, BurstTask], folder: Path) -> Path:
    """Write `burst.png`: a line for each task, by its label. All are of as many models."""
    path = folder / "burst.png"
    with styled():
        models = next(iter(tasks.values())).models
        title = f"Simulated: {models} models asked for at once"
        figure, axes = one_axes(title, "Seconds", "Answered (%)", height_in=_HEIGHT_IN)
        for number, (name, task) in enumerate(tasks.items()):
            took_s = outcomes[task].took_s
            share = 100 * np.arange(len(took_s) + 1) / len(took_s)
            axes.step(
                [0.0, *took_s], share, where="post", label=name,
                color=COLOURS[number % len(COLOURS)], linestyle=LINES[number % len(LINES)],
            )  # fmt: skip
        axes.set_xlim(left=0)
        axes.set_ylim(0, 102)
        legend_below(axes)
        figure.savefig(path, format="png", dpi=DPI)
    return path
