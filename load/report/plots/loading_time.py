"""How long pods loaded models: all loads where a run tells of them, and those requests waited for.

After Blinowski et al. 2024, figure 5.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load.report.loading import loading_s
from load.report.plots.rows import name_rows, place, row_height
from load.report.run import LOADING_KEY
from load.report.style import COLOURS, LeftOut, Plot, labels, legend_below, not_told, one_axes
from load.report.times import axis_unit, spoken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from load.report.run import Run

_THICK: Final = 0.8
_THIN: Final = 0.4
_PALE: Final = 0.35
_GREY: Final = "#4A4A4A"


def loading_time(runs: Sequence[Run]) -> Plot | LeftOut:
    """Total time that pods spent on loading models: all of it, and what requests waited for."""
    heading = "Total loading time"
    waited = {run.name: loading_s(run) for run in runs if _tells_starts(run)}
    whole = {run.name: loads_s for run in runs if (loads_s := run.all_loading_s) is not None}
    told = [run for run in runs if run.name in waited or run.name in whole]
    if not told:
        return LeftOut(heading, "neither the runs nor their answers tell of loads")
    called = labels([run.name for run in runs])
    most = max([*waited.values(), *whole.values()])
    unit_s, unit = axis_unit(most)
    figure, axes = one_axes(
        _title(told, whole, waited, called), f"Loading time over all pods ({unit})", "",
        height_in=row_height(told),
    )  # fmt: skip
    for row, run in enumerate(told):
        colour = COLOURS[place(runs, run)]
        whole_s, waited_s = whole.get(run.name), waited.get(run.name)
        _bar(axes, row, (whole_s or 0.0) / unit_s, _THICK, colour, _PALE)
        _bar(axes, row, (waited_s or 0.0) / unit_s, _THIN, colour, 1.0)
        end = max(whole_s or 0.0, waited_s or 0.0) / unit_s
        axes.annotate(f" {_beside(whole_s, waited_s)}", (end, row), va="center", fontsize=9.5)
    name_rows(axes, called, told, most / unit_s)
    if whole:
        axes.broken_barh([], (0, 1), color=_GREY, alpha=_PALE, label="all loads")
        axes.broken_barh([], (0, 1), color=_GREY, label="loads that an answered request waited for")
        legend_below(axes)
    return Plot("loading_time", heading, _caption(told, whole, called), figure)


def _bar(
    axes: Axes, row: int, length: float, height: float, colour: str, opacity: float
) -> None:  # fmt: skip
    axes.barh(row, length, height, color=colour, alpha=opacity, linewidth=0)


def _tells_starts(run: Run) -> bool:
    return bool(((run.predict_pod.codes >= 0) & (run.start.codes >= 0)).any())


def _title(
    told: Sequence[Run],
    whole: Mapping[str, float],
    waited: Mapping[str, float],
    called: Mapping[str, str],
) -> str:
    """Compares all loads where every run tells of them, else those that requests waited for."""
    is_whole = all(run.name in whole for run in told)
    values = whole if is_whole else waited
    least, most = (pick(values, key=lambda name: (values[name], name)) for pick in (min, max))
    if values[most] == 0:
        return "No model was loaded" if is_whole else "No request waited for a load"
    loads = "All loads" if is_whole else "Loads that requests waited for"
    if values[least] == values[most]:
        return f"{loads} take {spoken(values[least])}"
    return (
        f"{loads} take {spoken(values[least])} in {called[least]}, "
        f"{spoken(values[most])} in {called[most]}"
    )


def _beside(whole_s: float | None, waited_s: float | None) -> str:
    """What stands beside a run's bars."""
    if whole_s is None:
        return f"{spoken(waited_s or 0.0)} waited for"
    if waited_s is None:
        return spoken(whole_s)
    return f"{spoken(whole_s)}, {spoken(waited_s)} waited for"


def _caption(told: Sequence[Run], whole: Mapping[str, float], called: Mapping[str, str]) -> str:
    without = [called[run.name] for run in told if run.name not in whole]
    unseen = "loads that no answer tells of: preloads, and loads whose requests gave up"
    begin, end = "Time", ""
    if whole:
        begin = (
            f"Pale: all loads onto devices, as the run itself tells ({LOADING_KEY}); among them "
            f"{unseen}. Dark: time"
        )
        end = f" Of {', '.join(without)} only the dark bar is known." if without else ""
    elif without:
        end = f" Not seen: {unseen}."
    return (
        f"{begin} during which a pod was loading a model that an answered request waited for, "
        "added up over models and pods; requests that wait for the same load count once."
        f"{end} Loading less is no merit of its own: read it with the completion times "
        f"(Blinowski et al. 2024, figure 5.6).{not_told(called, told)}"
    )
