"""Style of plots: colours for the colour-blind, sizes, labels, legends, axes, a row per run."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
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
"""Greys, darker for farther tiers: colours stand for runs."""
DPI: Final = 110
WIDTH_IN: Final = 9.0
_MAX_LABEL_LENGTH: Final = 28
_SHORT_AXIS_RATIO: Final = 3000.0
_LEGEND_CHARACTERS: Final = 112
_TITLE_CHARACTERS: Final = 92
_LEGEND_LINE_IN: Final = 0.22

SETTINGS: Final[dict[Any, Any]] = {
    "text.parse_math": False,  # names of models may have a dollar sign
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
"""matplotlib's parameters while figures are drawn."""


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    """Name of the PNG file, without its suffix."""
    heading: str
    caption: str
    """What is shown, how it is computed, and the source."""
    figure: Figure


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A plot without data."""

    heading: str
    why: str


def one_axes(title: str, x: str, y: str, *, height_in: float = 4.0) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; a long title is wrapped."""
    lines = textwrap.wrap(title, _TITLE_CHARACTERS)
    figure = Figure(figsize=(WIDTH_IN, height_in + _LEGEND_LINE_IN * (len(lines) - 1)))
    figure.suptitle("\n".join(lines), x=0.01, ha="left")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def legend_below(axes: Axes, *, marker_scale: float = 1.0) -> None:
    """A legend outside the axes, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    columns = max(1, min(4, len(labels), _LEGEND_CHARACTERS // (max(map(len, labels)) + 6)))
    lines = -(-len(labels) // columns)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE_IN * lines)
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        fontsize=9.5,
        markerscale=marker_scale,
    )


def log_ticks(axis: Axis) -> None:
    """A logarithmic axis with plain numbers: 0.01, 0.1, 1; with 2 and 5 if it is short."""

    def minor(value: float, _: object) -> str:
        low, high = axis.get_view_interval()
        is_short = high / low < _SHORT_AXIS_RATIO
        return f"{value:g}" if is_short and f"{value:e}"[0] in "25" else ""

    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(minor)


def count_ticks(axis: Axis) -> None:
    """An axis of counts: whole numbers with separators for thousands."""
    axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def labels(names: Sequence[str]) -> dict[str, str]:
    """A short, unique label for each name."""
    found = [shortened(name) for name in names]
    if len(set(found)) < len(found):
        found = [f"{number}: {shortened(name)}" for number, name in enumerate(names, start=1)]
    # matplotlib omits labels from legends that begin with an underscore
    shown = [f" {label}" if label.startswith("_") else label for label in found]
    return dict(zip(names, shown, strict=True))


def not_shown_note(run_labels: Mapping[str, str], shown: Sequence[Run]) -> str:
    """The end of a caption: the runs without data for the plot; labels by name of run."""
    names = {run.name for run in shown}
    absent = [label for name, label in run_labels.items() if name not in names]
    return f" Not shown, for lack of data: {', '.join(absent)}." if absent else ""


def shortened(name: str) -> str:
    """A name that fits beside an axis: on one line, its middle omitted."""
    name = " ".join(name.split())
    if len(name) <= _MAX_LABEL_LENGTH:
        return name
    half = (_MAX_LABEL_LENGTH - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def styled() -> AbstractContextManager[None]:
    return mpl.rc_context(SETTINGS)


def row_height_in(runs: Sequence[Run]) -> float:
    """Height of a figure with a row per run."""
    return 1.5 + 0.42 * len(runs)


def label_rows(
    axes: Axes, run_labels: Mapping[str, str], shown: Sequence[Run], longest: float
) -> None:
    """Write the runs' names beside their rows; `longest` is the end of the longest bar."""
    axes.set_yticks(range(len(shown)), [run_labels[run.name] for run in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * longest or 1.0)
    axes.grid(visible=False, axis="y")
