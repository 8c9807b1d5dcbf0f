"""How plots look: colours that the colour-blind can tell apart, sizes, legends, axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#8C7A00",
)  # fmt: skip
"""Okabe and Ito 2008, with a darker yellow; one per run."""
LINES: Final = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES: Final = ("", "//", "..", "\\\\", "xx", "--", "oo", "++")
TIERS: Final = {"host": "#56B4E9", "disk": "#E69F00", "remote": "#D55E00"}
DPI: Final = 110
_WIDTH_IN: Final = 9.0
_LONGEST: Final = 28
_FEW_DECADES: Final = 3000.0
_LETTERS_WIDE: Final = 112
_LEGEND_LINE_IN: Final = 0.22

SETTINGS: Final[dict[Any, Any]] = {
    "text.parse_math": False,  # names of models may hold a dollar sign
    "font.size": 10.0,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
"""matplotlib's parameters while figures are made and drawn."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure of the report."""

    name: str
    """Of the PNG file, without its ending."""
    heading: str
    caption: str
    """What is shown, how it was reckoned, and the source."""
    figure: Figure


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A plot that the runs have no data for."""

    heading: str
    why: str


def one_axes(title: str, x: str, y: str, *, height_in: float = 4.0) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(_WIDTH_IN, height_in))
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def rows_of_axes(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A figure with axes under one another that share their x axis; heights in inches."""
    figure = Figure(figsize=(_WIDTH_IN, sum(heights)))
    found = figure.subplots(len(heights), 1, squeeze=False, height_ratios=list(heights))
    return figure, list(found[:, 0])


def legend_below(axes: Axes) -> None:
    """A legend outside the axes, where it hides nothing, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    columns = max(1, min(4, len(labels), _LETTERS_WIDE // (max(map(len, labels)) + 6)))
    lines = -(-len(labels) // columns)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE_IN * lines)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9.5)


def log_ticks(axis: Axis) -> None:
    """A logarithmic axis with plain numbers: 0.01, 0.1, 1; with 2 and 5 where it is short."""

    def minor(value: float, _: object) -> str:
        low, high = axis.get_view_interval()
        is_short = high / low < _FEW_DECADES
        return f"{value:g}" if is_short and f"{value:e}"[0] in "25" else ""

    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(minor)


def short(name: str) -> str:
    """A name that fits beside an axis: its middle is left out."""
    if len(name) <= _LONGEST:
        return name
    half = (_LONGEST - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def styled() -> AbstractContextManager[None]:
    """The context in which figures are made and drawn."""
    return mpl.rc_context(SETTINGS)
