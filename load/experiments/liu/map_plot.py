"""The map of winners as a picture: a panel per inference and post-processing time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from load.report.style import COLOURS, DPI, styled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.axes import Axes

    from load.experiments.liu.simulated import ModelTimings
    from load.experiments.liu_grid import Won

_NAMES: Final = {
    "C": "colocation", "Q": "colocation-queueing", "P": "remote-proxy",
    "CQ": "colocation = queueing", "CP": "colocation = proxy", "QP": "queueing = proxy",
    "CQP": "all alike",
}  # fmt: skip
_COLOURS: Final = dict(
    zip(_NAMES, (COLOURS[0], COLOURS[1], COLOURS[2], "#b9b2d8", "#8fd0cf", "#c9d36b", "#dddddd"),
        strict=True)
)  # fmt: skip
_DARK: Final = ("C", "P")


def draw_map(workload: str, grid: Mapping[tuple[str, ModelTimings], Won], folder: Path) -> Path:
    """Write the map of one workload as PNG; returns the file."""
    cells = {times: won for (of, times), won in grid.items() if of == workload}
    infers_s = sorted({times.infer_s for times in cells})
    afters_s = sorted({times.postprocess_s for times in cells})
    with styled():
        figure = Figure(figsize=(3.6 * len(afters_s) + 1, 1.9 * len(infers_s) + 1.4))
        found = figure.subplots(len(infers_s), len(afters_s), squeeze=False)
        for row, infer_s in enumerate(infers_s):
            for column, after_s in enumerate(afters_s):
                axes: Axes = found[row, column]
                _panel(axes, {
                    times: won for times, won in cells.items()
                    if (times.infer_s, times.postprocess_s) == (infer_s, after_s)
                })  # fmt: skip
                axes.set_title(f"inference {infer_s:g} s, post-processing {after_s:g} s",
                               fontsize=9.5)  # fmt: skip
                if column == 0:
                    axes.set_ylabel("network (s)")
                if row == len(infers_s) - 1:
                    axes.set_xlabel("cold start (s)")
        seen = {won.winners for won in cells.values()}
        handles = [Patch(color=_COLOURS[each], label=_NAMES[each])
                   for each in _NAMES if each in seen]  # fmt: skip
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9.5)
        figure.suptitle(
            f"{workload}: fastest fixed policy by mean latency; in each cell auto's regret in %",
            fontsize=11.5,
        )
        path = folder / f"map-{workload}.png"
        figure.savefig(path, dpi=DPI)
    return path


def _panel(axes: Axes, cells: Mapping[ModelTimings, Won]) -> None:
    loads_s = sorted({times.load_s for times in cells})
    networks_s = sorted({times.network_s for times in cells})
    axes.grid(visible=False)
    for times, won in cells.items():
        x, y = loads_s.index(times.load_s), networks_s.index(times.network_s)
        axes.fill([x, x + 1, x + 1, x], [y, y, y + 1, y + 1], color=_COLOURS[won.winners],
                  edgecolor="white", linewidth=1)  # fmt: skip
        axes.text(x + 0.5, y + 0.5, f"{100 * won.regret:+.0f}", ha="center", va="center",
                  fontsize=9, color="white" if won.winners in _DARK else "black")  # fmt: skip
    axes.set_xticks([each + 0.5 for each in range(len(loads_s))], [f"{each:g}" for each in loads_s])
    axes.set_yticks(
        [each + 0.5 for each in range(len(networks_s))], [f"{each:g}" for each in networks_s]
    )
    axes.set_xlim(0, len(loads_s))
    axes.set_ylim(0, len(networks_s))
    axes.tick_params(length=0)
