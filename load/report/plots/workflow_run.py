"""A workflow's run over time, by pod: when its steps queued, loaded, moved data and inferred."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from load.report.style import COLOURS, one_axes, styled

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
