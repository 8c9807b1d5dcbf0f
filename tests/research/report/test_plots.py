"""Contents of each plot: axes, legend, and values computed by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from research.report.plots import arrivals, cold_starts, completion_times, deadline_misses, stages
from research.report.style import LeftOut, Plot, styled
from tests.load.report.runs import steady_run


@pytest.fixture(autouse=True)
def _styled() -> Iterator[None]:
    with styled():
        yield


def _figure(drawn: Plot | LeftOut) -> Figure:
    assert isinstance(drawn, Plot)
    return drawn.figure


def _axes(drawn: Plot | LeftOut) -> Axes:
    [axes] = _figure(drawn).axes
    return axes


def _named(axes: Axes) -> tuple[str, str]:
    return axes.get_xlabel(), axes.get_ylabel()


def _legend(figure: Figure) -> list[str]:
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def _rows(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


def _bars(axes: Axes) -> list[list[float]]:
    """Row, begin and width of each horizontal bar, from the first drawn on."""
    return [
        [round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width()]
        for bars in axes.containers
        for bar in bars
    ]


def _texts(axes: Axes) -> list[str]:
    return [text.get_text().strip() for text in axes.texts]


def _steps(axes: Axes) -> list[list[float]]:
    return [list(each.get_data()[0]) for each in axes.patches if isinstance(each, StepPatch)]


def _points(axes: Axes, label: str) -> list[list[float]]:
    [line] = [each for each in axes.lines if each.get_label() == label]
    return [list(point) for point in np.asarray(line.get_xydata())]


def _face(drawn: Collection) -> tuple[float, float, float, float]:
    red, green, blue, opacity = np.asarray(drawn.get_facecolor())[0]
    return red, green, blue, opacity


def test_arrivals_are_counted_per_bin(tmp_path: Path) -> None:
    one = steady_run(tmp_path, name="one", scheduled_s=[0.0, 0.05, 1.02, 4.0])
    two = steady_run(tmp_path, name="two", scheduled_s=[0.0, 1.0, 2.0, 4.0])
    figure = _figure(arrivals([one, two]))
    axes = figure.axes[0]
    assert _named(axes) == ("Time since start (s)", "Requests per 100 ms")
    assert _legend(figure) == ["one", "two"]
    first, second = _steps(axes)
    assert (first[0], first[10], sum(first)) == (2, 1, 4)
    assert (second[0], second[10], second[20]) == (1, 1, 1)
    assert axes.get_xlim() == (0, 4)


def test_arrivals_of_one_trace_are_drawn_once(tmp_path: Path) -> None:
    runs = [steady_run(tmp_path, name=name, scheduled_s=[0.0, 1.0, 2.0, 4.0]) for name in "ab"]
    figure = _figure(arrivals(runs))
    assert _legend(figure) == ["all runs"]
    assert len(_steps(figure.axes[0])) == 1


def test_completion_times_end_at_the_answered_share(tmp_path: Path) -> None:
    half = steady_run(
        tmp_path,
        name="half",
        scheduled_s=[0.0, 1.0, 2.0, 3.0],
        status=[200, 503, 200, 503],
        finished_s=[0.2, 1.1, 2.1, 3.1],
    )
    none = steady_run(tmp_path, name="none", status=[503] * 4)
    figure = _figure(completion_times([half, none]))
    axes = figure.axes[0]
    assert _named(axes) == ("Time from scheduled arrival to last byte (s)", "Share of all requests")
    assert axes.get_xscale() == "log"
    assert _legend(figure) == ["half (50.0% not answered)", "none (100.0% not answered)"]
    drawn = _points(axes, "half (50.0% not answered)")
    assert drawn[0] == pytest.approx([0.1, 0.0])
    assert drawn[1] == pytest.approx([0.1, 0.25])
    assert drawn[-1] == pytest.approx([0.2, 0.5])
    assert _points(axes, "none (100.0% not answered)") == []


def test_deadline_misses_per_minute_of_arrival(tmp_path: Path) -> None:
    one = steady_run(
        tmp_path,
        name="one",
        scheduled_s=[0.0, 30.0, 61.0, 359.0],
        deadline_s=[1.0] * 4,
        finished_s=[0.5, 31.5, 63.0, 359.5],
    )
    free = steady_run(tmp_path, name="free", deadline_s=[None] * 4)
    drawn = deadline_misses([one, free])
    figure = _figure(drawn)
    axes = figure.axes[0]
    assert _named(axes) == ("Time of arrival since start (min)", "Requests per minute")
    assert _legend(figure) == ["all arrivals of one", "one: 2 missed"]
    assert _steps(axes) == [[2, 1, 0, 0, 0, 1], [1, 1, 0, 0, 0, 0]]
    assert isinstance(drawn, Plot)
    assert drawn.caption.endswith("Not shown, for lack of data: free.")


_LOADS: dict[str, Any] = {
    "scheduled_s": [0.0, 1.0, 5.0, 9.0],
    "sent_s": [0.0, 1.0, 5.0, 9.0],
    "start": ["remote", "remote", "warm", "disk"],
    "load_ms": [2000.0, 1000.0, 0.0, 500.0],
    "infer_ms": [100.0] * 4,
    "finished_s": [2.1, 2.1, 5.1, 9.6],
}


def test_cold_starts_are_stacked_by_tier(tmp_path: Path) -> None:
    cold = steady_run(tmp_path, 5, name="cold", start=["host", "disk", "remote", "remote", "warm"])
    warm = steady_run(tmp_path, name="warm")
    figure = _figure(cold_starts([cold, warm]))
    axes = figure.axes[0]
    assert _named(axes) == ("Requests that waited for a load", "")
    assert _rows(axes) == ["cold", "warm"]
    assert _legend(figure) == [
        "from the node's memory",
        "from the node's disk",
        "from object storage",
    ]
    assert [bar for bar in _bars(axes) if bar[0] == 0] == [[0, 0, 1], [0, 1, 1], [0, 2, 2]]
    assert _texts(axes) == ["4 (80.00%)", "0 (0.00%)"]


def test_stages_are_means_on_a_logarithmic_axis(tmp_path: Path) -> None:
    plain = steady_run(
        tmp_path,
        2,
        name="plain",
        **{
            f"{name}_ms": [None, None]
            for name in ("queue", "load", "preprocess", "infer", "postprocess", "network")
        },
    )
    one = steady_run(tmp_path, 2, name="one", load_ms=[2000.0, 0.0], infer_ms=[10.0, 30.0])
    drawn = stages([plain, one])
    figure = _figure(drawn)
    axes = figure.axes[0]
    assert _named(axes) == ("Stage", "Mean time per request (ms)")
    assert axes.get_yscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == [
        "queue",
        "load",
        "preprocess",
        "infer",
        "postprocess",
        "network",
    ]
    assert _legend(figure) == ["plain", "one"]
    heights = [bar.get_height() for bar in axes.containers[1]]
    assert heights == pytest.approx([np.nan, 1000.0, np.nan, 20.0, np.nan, np.nan], nan_ok=True)
    assert isinstance(drawn, Plot)
    assert drawn.caption.endswith("Not shown, for lack of data: plain.")


def test_stages_are_left_out_if_no_request_reached_a_pod(tmp_path: Path) -> None:
    assert isinstance(stages([steady_run(tmp_path, status=[404] * 4)]), LeftOut)
