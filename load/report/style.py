"""How plots look: colours that the colour-blind can tell apart, sizes, legends, axes."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from load.report.run import Run

COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#8C7A00",
)  # fmt: skip
"""Okabe and Ito 2008, with a darker yellow; one per run."""
LINES: Final = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES: Final = ("", "//", "..", "\\\\", "xx", "--", "oo", "++")
TIERS: Final = {"host": "#C8C8C8", "disk": "#8A8A8A", "remote": "#4A4A4A"}
"""Greys, the darker the farther: the colours are those of runs."""
DPI: Final = 110
_WIDTH_IN: Final = 9.0
_LONGEST: Final = 28
_FEW_DECADES: Final = 3000.0
_LETTERS_WIDE: Final = 112
_TITLE_LETTERS: Final = 92
_LEGEND_LINE_IN: Final = 0.22

SETTINGS: Final[dict[Any, Any]] = {
    "text.parse_math": False,  # names of models may hold a dollar sign
    "font.size": 10.0,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "figure.titlesize": 11.5,
    "figure.titleweight": "bold",
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
    """A figure with one pair of axes; a long title takes several lines."""
    lines = textwrap.wrap(title, _TITLE_LETTERS)
    figure = Figure(figsize=(_WIDTH_IN, height_in + _LEGEND_LINE_IN * (len(lines) - 1)))
    figure.suptitle("\n".join(lines), x=0.01, ha="left")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def rows_of_axes(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A figure with axes under one another that share their x axis; heights in inches."""
    figure = Figure(figsize=(_WIDTH_IN, sum(heights)))
    found = figure.subplots(len(heights), 1, squeeze=False, height_ratios=list(heights))
    return figure, list(found[:, 0])


def legend_below(axes: Axes, *, marker_scale: float = 1.0) -> None:
    """A legend outside the axes, where it hides nothing, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    columns = max(1, min(4, len(labels), _LETTERS_WIDE // (max(map(len, labels)) + 6)))
    lines = -(-len(labels) // columns)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE_IN * lines)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9.5,
                  markerscale=marker_scale)  # fmt: skip


def log_ticks(axis: Axis) -> None:
    """A logarithmic axis with plain numbers: 0.01, 0.1, 1; with 2 and 5 where it is short."""

    def minor(value: float, _: object) -> str:
        low, high = axis.get_view_interval()
        is_short = high / low < _FEW_DECADES
        return f"{value:g}" if is_short and f"{value:e}"[0] in "25" else ""

    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(minor)


def count_ticks(axis: Axis) -> None:
    """An axis of counts: whole numbers, thousands apart."""
    axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def labels(names: Sequence[str]) -> dict[str, str]:
    """What each of some names is called in plots: short, and no two alike."""
    for tried in (names, _without_common_ends(names)):
        found = [short(name) for name in tried]
        if len(set(found)) == len(found):
            break
    else:
        found = [f"{number}: {short(name)}" for number, name in enumerate(names, start=1)]
    # matplotlib leaves labels that begin with an underscore out of legends
    shown = [f" {label}" if label.startswith("_") else label for label in found]
    return dict(zip(names, shown, strict=True))


def not_told(called: Mapping[str, str], told: Sequence[Run]) -> str:
    """The end of a caption: which runs are not in the plot."""
    shown = {run.name for run in told}
    absent = [label for name, label in called.items() if name not in shown]
    return f" Not shown, for want of figures: {', '.join(absent)}." if absent else ""


def _without_common_ends(names: Sequence[str]) -> list[str]:
    """Names without the words that all begin or end with."""
    begin = _common_words(names)
    ends = [name[begin:][::-1] for name in names]
    end = _common_words(ends)
    return [("…" if begin else "") + rest[end:][::-1] + ("…" if end else "") for rest in ends]


def _common_words(names: Sequence[str]) -> int:
    """How many letters the words have that all names begin with."""
    letters = zip(*names, strict=False)  # as many as the shortest has
    common = "".join(each[0] for each in takewhile(lambda each: len(set(each)) == 1, letters))
    return len(re.sub(r"[^\W_]+$", "", common))


def short(name: str) -> str:
    """A name that fits beside an axis: on one line, its middle left out."""
    name = " ".join(name.split())
    if len(name) <= _LONGEST:
        return name
    half = (_LONGEST - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def styled() -> AbstractContextManager[None]:
    """The context in which figures are made and drawn."""
    return mpl.rc_context(SETTINGS)
