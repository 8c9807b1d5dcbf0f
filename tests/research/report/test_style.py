"""Labels, colours and space: plots stay readable with many runs and long names."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.artist import Artist
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, Container
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from load.report.run import Run
from load.report.run_file import read_run
from research.report.comparison import PLOTS
from research.report.style import COLOURS, TIERS, Plot, labels, styled
from tests.load.report.runs import write_run


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param(["auto", "own"], ["auto", "own"], id="short"),
        pytest.param(["_auto"], [" _auto"], id="kept-out-of-legends-by-matplotlib"),
        pytest.param(["a\n b"], ["a b"], id="lines"),
        pytest.param(["x" * 40], ["x" * 13 + "…" + "x" * 13], id="long"),
        pytest.param(
            [f"{a}{'-' * 20}{b}{'-' * 20}{c}" for a, b, c in ("xyx", "xzx", "zyx", "xyz")],
            [
                f"{n}: {a}{'-' * 12}…{'-' * 12}{c}"
                for n, a, c in ((1, "x", "x"), (2, "x", "x"), (3, "z", "x"), (4, "x", "z"))
            ],
            id="alike-all-the-same",
        ),
    ],
)
def test_labels_are_short_and_unique(names: list[str], expected: list[str]) -> None:
    assert labels(names) == dict(zip(names, expected, strict=True))


def _runs(folder: Path, names: Sequence[str], *, rows: int = 200) -> list[Run]:
    """Runs of these names, with long names of models."""
    runs = []
    for seed, name in enumerate(names):
        metadata = {"wasted_memory_byte_s": 1e9 * (seed + 1), "all_loading_s": 20.0 + seed}
        path = write_run(
            folder / f"{seed}.parquet",
            rows,
            seed=seed,
            cold_rate=0.1,
            metadata=metadata,
            model=[
                f"a-model-of-the-longest-name-number-{row % 17}-of-seventeen" for row in range(rows)
            ],
        )
        runs.append(read_run(path, name))
    return runs


def _drawn(runs: list[Run]) -> list[Plot]:
    found = [plot(runs) for plot in PLOTS]
    return [each for each in found if isinstance(each, Plot)]


def test_run_has_one_colour_in_all_plots(tmp_path: Path) -> None:
    names = ["one", "two", "three"]
    runs = _runs(tmp_path, names)
    seen: dict[str, set[str]] = {name: set() for name in names}
    with styled():
        for plot in _drawn(runs):
            for axes in plot.figure.axes:
                for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                    name = label.partition(" ")[0].rstrip(":")
                    if name in seen:
                        seen[name].add(_colour(handle))
    assert seen == {name: {COLOURS[at]} for at, name in enumerate(names)}
    assert not set(TIERS.values()) & set(COLOURS)


def _colour(handle: Artist | Container) -> str:
    """Of a line, an outline, or bars."""
    match handle:
        case Line2D():
            return to_hex(handle.get_color()).upper()
        case Patch():
            return to_hex(handle.get_edgecolor()).upper()
        case BarContainer():
            [colour] = {to_hex(bar.get_facecolor()).upper() for bar in handle}
            return colour
        case _:
            pytest.fail(f"unexpected artist: {handle}")


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, pytest.param(6, marks=pytest.mark.slow), 8])
def test_texts_stay_inside_and_apart_with_long_names(tmp_path: Path, count: int) -> None:
    names = [
        f"{n}-run-of-a-name-that-fits-beside-no-axis-and-in-no-legend-{n}" for n in range(count)
    ]
    with styled():
        plots = _drawn(_runs(tmp_path, names))
        assert len(plots) == len(PLOTS) - 1  # no run is of applications
        for plot in plots:
            _assert_readable(plot.figure, plot.name)


def _assert_readable(figure: Figure, name: str) -> None:
    figure.draw_without_rendering()
    shown = [(text.get_text(), text.get_window_extent()) for text in _texts(figure)]
    whole = figure.bbox
    for said, box in shown:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1
        assert inside, f"{name}: {said!r} sticks out"
    for at, (said, box) in enumerate(shown):
        for other, other_box in shown[at + 1 :]:
            assert not box.padded(-1).overlaps(other_box.padded(-1)), f"{name}: {said!r}, {other!r}"


def _texts(figure: Figure) -> list[Text]:
    """Texts that are drawn: matplotlib keeps labels of ticks beyond the ends of an axis."""
    found = {text for text in figure.findobj(Text) if isinstance(text, Text)}
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    found -= {tick.label1, tick.label2}
    return [text for text in found if text.get_visible() and text.get_text().strip()]
