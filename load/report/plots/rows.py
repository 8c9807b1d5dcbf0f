"""A row per run: how high the figure is, and the runs' names beside the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from load.report.run import Run


def row_height(runs: Sequence[Run]) -> float:
    """Of a figure with these rows, in inches."""
    return 1.5 + 0.42 * len(runs)


def place(runs: Sequence[Run], run: Run) -> int:
    """The run's place among all, which gives its colour."""
    return [each.name for each in runs].index(run.name)


def name_rows(axes: Axes, called: Mapping[str, str], told: Sequence[Run], most: float) -> None:
    """Write the runs' names beside their rows; `most` is the longest bar's end."""
    axes.set_yticks(range(len(told)), [called[run.name] for run in told])
    axes.set_ylim(len(told) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * most or 1.0)
    axes.grid(visible=False, axis="y")
