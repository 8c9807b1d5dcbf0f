"""The Pareto plot: idle memory-time against cold starts, one line per policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load.experiments.prewarm.runs import OURS, PEERS
from load.report.style import COLOURS, DPI, MARKERS, legend_below, log_ticks, rows_of_axes, styled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from load.experiments.prewarm.runs import PrewarmResult


def draw(outcomes: Sequence[PrewarmResult], folder: Path) -> Path:
    """Write `pareto.png`: cold starts of all requests, and the 75th percentile of models."""
    path = folder / "pareto.png"
    with styled():
        figure, (above, below) = rows_of_axes([3.2, 3.2])
        for at, policy in enumerate((OURS, *PEERS)):
            line = sorted(
                (each.idle_model_h, each.cold_share, each.p75)
                for each in outcomes
                if each.policy == policy
            )
            memory, cold, p75 = zip(*line, strict=True)
            above.plot(memory, cold, color=COLOURS[at], marker=MARKERS[at], label=policy)
            below.plot(memory, p75, color=COLOURS[at], marker=MARKERS[at])
        above.set_title("Simulated: idle memory against cold starts")
        above.set_ylabel("Cold, all requests")
        below.set_ylabel("Cold, 75th percentile of models")
        below.set_xlabel("Memory held idle (models x hours)")
        for axes in (above, below):
            axes.set_xscale("log")
            log_ticks(axes.xaxis)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        legend_below(above)
        figure.savefig(path, format="png", dpi=DPI)
    return path
