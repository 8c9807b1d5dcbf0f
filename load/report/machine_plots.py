"""Time of pods: models loading, loaded and inferring; all loads in total; a workflow's run by pod.

After Blinowski et al. 2024, figures 5.6 and 5.7.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from load.report.run import LOADING_KEY, Run
from load.report.run_file import axis_unit, format_duration
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
    rows_of_axes,
    run_index,
    shortened,
    styled,
)
from load.report.summary import PodUsage, TimeSpans, loading_s, pod_usages, union

_MAX_PODS: Final = 4
_MAX_MODELS: Final = 10
_PIXELS: Final = 700
"""Minimum width of an axis: a narrower span could vanish between two pixels."""
_LOADED: Final = 0.3
"""Opacity of loaded models; loading is opaque."""


def machine_usage(run: Run, number: int) -> Plot | LeftOut:
    """The busiest pods of one run, one below the other."""
    heading = f"Machine usage: {run.name}"
    if not (run.predict_pod.codes >= 0).any():
        return LeftOut(heading, "the records name no pod")
    found = [
        each for each in pod_usages(run) if len(each.loading.begins) or len(each.inferring.begins)
    ]
    if not found:
        return LeftOut(heading, "no request reached a model")
    busy: dict[str, float] = {}
    for pod in dict.fromkeys(each.pod for each in found):
        spans = [s for each in found if each.pod == pod for s in (each.loading, each.inferring)]
        begins, ends = [each.begins for each in spans], [each.ends for each in spans]
        busy[pod] = union(np.concatenate(begins), np.concatenate(ends)).total_s
    pods = sorted(sorted(busy, key=lambda pod: (-busy[pod], pod))[:_MAX_PODS])
    shown = {pod: _busiest([each for each in found if each.pod == pod]) for pod in pods}
    unit_s, unit = axis_unit(run.duration_s)
    figure, rows = rows_of_axes([0.85 + 0.24 * len(shown[pod]) for pod in pods])
    for axes, pod in zip(rows, pods, strict=True):
        draw_usage(axes, shown[pod], run.duration_s, unit_s, COLOURS[number - 1])
        ratio = busy[pod] / run.duration_s
        axes.set_title(f"{shortened(pod)}: {ratio:.0%} of the time loading or inferring")
    rows[-1].set_xlabel(f"Time since start ({unit})")
    usage_legend(rows[-1], COLOURS[number - 1])
    others = f" The {len(busy) - len(pods)} others did less." if len(busy) > len(pods) else ""
    caption = (
        f"{len(pods)} of {len(busy)} pods with the models that ran there most, at most "
        f"{_MAX_MODELS}, as far as records show (Blinowski et al. 2024, figure 5.7).{others} "
        "Loaded lasts until a model's last use before its next load. Short spans are drawn a pixel "
        "wide. Not shown: loads that no record shows (preloads, and loads whose requests were "
        "cancelled), and loaded models without requests; a preloaded model appears with its first "
        "request."
    )
    return Plot(f"machine_usage_{number}", heading, caption, figure)


def _busiest(found: list[PodUsage]) -> list[PodUsage]:
    kept = sorted(found, key=lambda each: (-each.inferring.total_s, each.model))
    return sorted(kept[:_MAX_MODELS], key=lambda each: each.model)


def usage_legend(axes: Axes, colour: str) -> None:
    for label, shade, alpha in (
        ("loading", colour, 1.0),
        ("loaded", colour, _LOADED),
        ("inferring", "black", 1.0),
    ):
        axes.broken_barh([], (0, 1), color=shade, alpha=alpha, linewidth=0, label=label)
    legend_below(axes)


def draw_usage(
    axes: Axes,
    found: Sequence[PodUsage],
    duration_s: float,
    unit_s: float,
    colour: str,
    *,
    start_s: float = 0.0,
) -> None:
    """One row per model, from `start_s` for `duration_s`."""
    pixel_s = duration_s / _PIXELS
    for row, each in enumerate(found):
        _blocks(axes, each.loaded, row, 0.8, colour, _LOADED, pixel_s, unit_s)
        _blocks(axes, each.loading, row, 0.8, colour, 1.0, pixel_s, unit_s)
        _blocks(axes, each.inferring, row, 0.4, "black", 1.0, pixel_s, unit_s)
    axes.set_yticks(range(len(found)), list(labels([each.model for each in found]).values()))
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlim(start_s / unit_s, (start_s + duration_s) / unit_s)
    axes.grid(visible=False, axis="y")


def _blocks(
    axes: Axes,
    spans: TimeSpans,
    row: int,
    height: float,
    colour: str,
    alpha: float,
    pixel_s: float,
    unit_s: float,
) -> None:
    """Draw spans of time; spans nearer than half a pixel are joined."""
    drawn = union(spans.begins, spans.ends, gap_s=pixel_s / 2)
    widths = np.maximum(drawn.ends - drawn.begins, pixel_s) / unit_s
    pairs = list(zip(drawn.begins / unit_s, widths, strict=True))
    axes.broken_barh(pairs, (row - height / 2, height), color=colour, alpha=alpha, linewidth=0)


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
        _title(shown, whole, waited, run_labels),
        f"Loading time over all pods ({unit})",
        "",
        height_in=row_height_in(shown),
    )
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


_STAGES: Final = ("queue", "network", "load", "preprocess", "infer", "postprocess")
"""In the order in which a request passes them (`server-timing`)."""
_COLOUR_OF: Final = dict(
    zip(
        _STAGES,
        ("#C8C8C8", COLOURS[4], COLOURS[1], COLOURS[2], COLOURS[0], COLOURS[3]),
        strict=True,
    )
)
_PRELOAD: Final = "load ahead"
_ROW_IN: Final = 0.28


def run_timeline(document: Mapping[str, Any]) -> Figure:
    """The run as its document (`GET …/runs/ID`) tells it; times in seconds since its begin.

    Raises ValueError for a run without steps that were sent.
    """
    rows = sorted(_rows(document), key=lambda row: (row[0], row[2]))
    if not rows:
        raise ValueError("no step of the run was sent yet")
    with styled():
        figure, axes = one_axes(
            f"Run {document['id'][:12]} of {document['workflow']}: {document['status']}",
            "Seconds since its begin",
            "",
            height_in=1.6 + _ROW_IN * len(rows),
        )
        for at, (_, _, _, spans) in enumerate(rows):
            _draw(axes, at, spans)
        axes.set_yticks(range(len(rows)), [f"{pod}  {label}" for pod, label, _, _ in rows])
        axes.invert_yaxis()
        for at in range(1, len(rows)):
            if rows[at][0] != rows[at - 1][0]:
                axes.axhline(at - 0.5, color="#888888", linewidth=0.8)
        drawn = {kind for *_, spans in rows for kind, _, _ in spans}
        handles = [_patch(kind) for kind in (*_STAGES, _PRELOAD) if kind in drawn]
        axes.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=len(handles)
        )
    return figure


Span = tuple[str, float, float]


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str, float, Sequence[Span]]]:
    """Pod, label, begin and spans of each step and each load ahead."""
    last_s = max((step.get("ended_s", 0.0) for step in document["steps"]), default=0.0)
    for step in document["steps"]:
        if "sent_s" not in step:
            continue
        mark = "" if step["predicted"] else " (not predicted)"
        label = f"{step['step']} {step['model']}{mark}"
        end_s = step.get("ended_s", last_s)
        yield step["pod"] or "?", label, step["sent_s"], list(_spans(step, end_s))
    for load in document.get("preloads", ()):
        end_s = last_s if load["ended_s"] is None else load["ended_s"]
        span = (_PRELOAD, load["begun_s"], max(end_s - load["begun_s"], 0.0))
        yield load["pod"], f"{load['model']} ahead", load["begun_s"], [span]


def _spans(step: Mapping[str, Any], end_s: float) -> Iterator[Span]:
    """The stages that the pod measured, up to the step's end; what is before them is queueing."""
    stages = step.get("stages_ms") or {}
    seconds = {stage: stages.get(stage, 0.0) / 1000 for stage in _STAGES}
    total_s, at_s = end_s - step["sent_s"], step["sent_s"]
    seconds["queue"] = max(total_s - sum(seconds[stage] for stage in _STAGES[1:]), 0.0)
    for stage in _STAGES:
        length_s = min(seconds[stage], end_s - at_s)
        if length_s > 0:
            yield stage, at_s, length_s
            at_s += length_s


def _draw(axes: Axes, row: int, spans: Sequence[Span]) -> None:
    for kind, begin_s, seconds in spans:
        patch = _patch(kind)
        axes.barh(
            row,
            seconds,
            left=begin_s,
            height=0.7,
            color=patch.get_facecolor(),
            hatch=patch.get_hatch(),
            edgecolor="white",
        )


def _patch(kind: str) -> Patch:
    if kind == _PRELOAD:
        return Patch(facecolor=_COLOUR_OF["load"], hatch="//", label=kind, edgecolor="white")
    return Patch(facecolor=_COLOUR_OF[kind], label=kind)
