"""Figures of several axes, in the style of reports."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from research.report.style import WIDTH_IN


def rows_of_axes(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A figure with axes below one another; heights in inches."""
    figure = Figure(figsize=(WIDTH_IN, sum(heights)))
    found = figure.subplots(len(heights), 1, squeeze=False, height_ratios=list(heights))
    return figure, list(found[:, 0])
