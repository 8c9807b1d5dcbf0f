"""Contents of the plots after papers: axes, legend, and values computed by hand."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from research.report.paper_plots import goodput, pareto, utility, wasted_memory
from research.report.style import LeftOut, Plot, styled
from tests.load.report.runs import steady_run
from tests.load.report.test_answers import answered_run


@pytest.fixture(autouse=True)
def _styled() -> Iterator[None]:
    with styled():
        yield


def _figure(drawn: Plot | LeftOut) -> Figure:
    assert isinstance(drawn, Plot)
    return drawn.figure


def _named(axes: Axes) -> tuple[str, str]:
    return axes.get_xlabel(), axes.get_ylabel()


def _legend(figure: Figure) -> list[str]:
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def _points(axes: Axes, label: str) -> list[list[float]]:
    [line] = [each for each in axes.lines if each.get_label() == label]
    return [list(point) for point in np.asarray(line.get_xydata())]


def test_goodput_has_a_point_per_run_against_the_offered_rate(tmp_path: Path) -> None:
    late = steady_run(
        tmp_path,
        name="late",
        scheduled_s=[0.0, 1.0, 1.5, 2.0],
        deadline_s=[1.0] * 4,
        finished_s=[0.1, 1.1, 4.0, 2.1],
    )
    slow = steady_run(
        tmp_path, name="slow", scheduled_s=[0.0, 1.0, 2.0, 4.0], finished_s=[0.1, 1.1, 2.1, 4.0]
    )
    figure = _figure(goodput([late, slow]))
    axes = figure.axes[0]
    assert _named(axes) == ("Offered load (requests/s)", "Goodput (requests/s answered in time)")
    assert _legend(figure) == ["all in time", "late", "slow"]
    assert _points(axes, "late") == [[2.0, 0.75]]
    assert _points(axes, "slow") == [[1.0, 1.0]]


def test_goodput_is_left_out_for_one_request(tmp_path: Path) -> None:
    assert isinstance(goodput([steady_run(tmp_path, 1)]), LeftOut)


def test_wasted_memory_with_the_pareto_front(tmp_path: Path) -> None:
    cold = ["remote", "warm", "warm", "warm"]
    runs = [
        steady_run(
            tmp_path, name="lean", start=["remote"] * 4, metadata={"wasted_memory_byte_s": 1e9}
        ),
        steady_run(tmp_path, name="warm", start=cold, metadata={"wasted_memory_byte_s": 5e9}),
        steady_run(tmp_path, name="both", start=cold, metadata={"wasted_memory_byte_s": 9e9}),
        steady_run(tmp_path, name="unrecorded"),
    ]
    drawn = wasted_memory(runs)
    figure = _figure(drawn)
    axes = figure.axes[0]
    assert _named(axes) == ("Wasted memory-time (GB s)", "Requests that started cold (%)")
    front = "no run is better in both (Pareto front)"
    assert _legend(figure) == [front, "lean", "warm", "both"]
    assert _points(axes, front) == [[1.0, 1.0], [5.0, 0.25]]
    assert [_points(axes, name) for name in ("lean", "warm", "both")] == [
        [[1.0, 1.0]],
        [[5.0, 0.25]],
        [[9.0, 0.25]],
    ]
    assert isinstance(drawn, Plot)
    assert drawn.caption.endswith("Not shown, for lack of data: unrecorded.")


def test_run_without_start_tiers_is_not_on_the_front(tmp_path: Path) -> None:
    run = steady_run(tmp_path, start=[None] * 4, metadata={"wasted_memory_byte_s": 1e9})
    assert isinstance(wasted_memory([run]), LeftOut)


def test_pareto_front_has_the_points_that_no_other_beats() -> None:
    assert pareto([(1, 9), (2, 5), (3, 6), (4, 1), (2, 5)]) == [0, 1, 3]


def test_the_plot_has_a_bar_of_each_measure_per_run(tmp_path: Path) -> None:
    runs = [
        answered_run(tmp_path, "one"),
        answered_run(tmp_path, "two", utility=[1.0, 0.0, 1.0, None]),
    ]
    with styled():
        drawn = utility(runs)
        assert isinstance(drawn, Plot)
        [axes] = drawn.figure.axes
        heights = [
            [bar.get_height() for bar in bars.patches]
            for bars in axes.containers
            if isinstance(bars, BarContainer)
        ]
    assert heights == [
        pytest.approx([1.25 / 3, 2 / 3]),
        pytest.approx([2 / 3, 2 / 3]),
        pytest.approx([1 / 3, 1 / 3]),
    ]


def test_runs_without_examples_have_no_utility(tmp_path: Path) -> None:
    assert utility([steady_run(tmp_path)]) is None
