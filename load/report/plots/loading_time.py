"""Bars of the time that pods spent on all loads, if recorded, and on loads that requests awaited.

After Blinowski et al. 2024, figure 5.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load.report.pod_usage import loading_s
from load.report.run import LOADING_KEY
from load.report.style import (
    COLOURS,
    LeftOut,
    Plot,
    label_rows,
    labels,
    legend_below,
    not_shown_note,
    one_axes,
    row_height_in,
    run_index,
)
from load.report.times import axis_unit, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load.report.run import Run

_THICK: Final = 0.8
_THIN: Final = 0.4
_PALE: Final = 0.35
_GREY: Final = "#4A4A4A"


def loading_time(runs: Sequence[Run]) -> Plot | LeftOut:
    """Total time of loads, and the part that requests waited for."""
    heading = "Total loading time"
    waited = {run.name: loading_s(run) for run in runs if _has_starts(run)}
    whole = {run.name: loads_s for run in runs if (loads_s := run.all_loading_s) is not None}
    shown = [run for run in runs if run.name in waited or run.name in whole]
    if not shown:
        return LeftOut(heading, "neither the runs nor their records show loads")
    run_labels = labels([run.name for run in runs])
    most = max([*waited.values(), *whole.values()])
    unit_s, unit = axis_unit(most)
    figure, axes = one_axes(
        _title(shown, whole, waited, run_labels), f"Loading time over all pods ({unit})", "",
        height_in=row_height_in(shown),
    )  # fmt: skip
    for row, run in enumerate(shown):
        colour = COLOURS[run_index(runs, run)]
        whole_s, waited_s = whole.get(run.name), waited.get(run.name)
        for time_s, height, opacity in ((whole_s, _THICK, _PALE), (waited_s, _THIN, 1.0)):
            length = (time_s or 0.0) / unit_s
            axes.barh(row, length, height, color=colour, alpha=opacity, linewidth=0)
        end = max(whole_s or 0.0, waited_s or 0.0) / unit_s
        axes.annotate(f" {_beside(whole_s, waited_s)}", (end, row), va="center", fontsize=9.5)
    label_rows(axes, run_labels, shown, most / unit_s)
    if whole:
        axes.broken_barh([], (0, 1), color=_GREY, alpha=_PALE, label="all loads")
        axes.broken_barh([], (0, 1), color=_GREY, label="loads that an answered request waited for")
        legend_below(axes)
    return Plot("loading_time", heading, _caption(shown, whole, run_labels), figure)


def _has_starts(run: Run) -> bool:
    return bool(((run.predict_pod.codes >= 0) & (run.start.codes >= 0)).any())


def _title(
    shown: Sequence[Run],
    whole: Mapping[str, float],
    waited: Mapping[str, float],
    run_labels: Mapping[str, str],
) -> str:
    """Compares all loads if every run records them, else those that requests waited for."""
    is_whole = all(run.name in whole for run in shown)
    values = whole if is_whole else waited
    least, most = (pick(values, key=lambda name: (values[name], name)) for pick in (min, max))
    if values[most] == 0:
        return "No model was loaded" if is_whole else "No request waited for a load"
    loads = "All loads" if is_whole else "Loads that requests waited for"
    if values[least] == values[most]:
        return f"{loads} take {format_duration(values[least])}"
    return (
        f"{loads} take {format_duration(values[least])} in {run_labels[least]}, "
        f"{format_duration(values[most])} in {run_labels[most]}"
    )


def _beside(whole_s: float | None, waited_s: float | None) -> str:
    """The text beside a run's bars."""
    if whole_s is None:
        return f"{format_duration(waited_s or 0.0)} waited for"
    if waited_s is None:
        return format_duration(whole_s)
    return f"{format_duration(whole_s)}, {format_duration(waited_s)} waited for"


def _caption(
    shown: Sequence[Run], whole: Mapping[str, float], run_labels: Mapping[str, str]
) -> str:
    without = [run_labels[run.name] for run in shown if run.name not in whole]
    unseen = "loads that no record shows: preloads, and loads whose requests were cancelled"
    begin, end = "Time", ""
    if whole:
        begin = (
            f"Pale: all loads to devices, as the run records them ({LOADING_KEY}), including "
            f"{unseen}. Dark: time"
        )
        end = f" Of {', '.join(without)} only the dark bar is known." if without else ""
    elif without:
        end = f" Not included: {unseen}."
    return (
        f"{begin} during which a pod was loading a model that an answered request waited for, "
        "summed over models and pods; requests that wait for the same load count once."
        f"{end} Less loading is not better by itself: compare the completion times "
        f"(Blinowski et al. 2024, figure 5.6).{not_shown_note(run_labels, shown)}"
    )
