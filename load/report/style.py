"""How plots look: colours that the colour-blind can tell apart, sizes, one way to begin a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

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

SETTINGS: Final = {
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


def legend_below(axes: Axes, entries: int) -> None:
    """A legend outside the axes, where it hides nothing."""
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=min(4, max(1, entries)),
        fontsize=9.5,
    )  # fmt: skip


def short(name: str) -> str:
    """A name that fits beside an axis: its middle is left out."""
    if len(name) <= _LONGEST:
        return name
    half = (_LONGEST - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def styled() -> mpl.rc_context:  # type: ignore[name-defined]
    """The context in which figures are made and drawn."""
    return mpl.rc_context(SETTINGS)
