"""The plot of the spike: the 99th percentile and the pods, second by second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from load.experiments.elastic.spiking import DEADLINE_S, RULES, SPIKE_AT_S, SpikeTask
from load.report.style import COLOURS, DPI, LINES, legend_below, rows_of_axes, styled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from load.experiments.elastic.spiking import Spiked

_BEFORE_S: Final = 20
_AFTER_S: Final = 60


def draw(outcomes: Mapping[SpikeTask, Spiked], seed: int, folder: Path) -> Path:
    """Write `spike.png`: one seed of both rules, with and without earlier spikes."""
    path = folder / "spike.png"
    begin = int(SPIKE_AT_S)
    seconds = range(begin - _BEFORE_S, begin + _AFTER_S)
    with styled():
        figure, (above, below) = rows_of_axes([3.0, 2.6])
        for colour, rule in enumerate(RULES):
            for line, is_known in enumerate((False, True)):
                run = outcomes[SpikeTask(rule, is_known, seed)]
                if is_known and rule != RULES[0]:
                    continue  # Knative's rule knows nothing of earlier days: the same run
                label = f"{rule}, earlier spikes known" if is_known else rule
                look: dict[str, Any] = {"color": COLOURS[colour], "linestyle": LINES[line]}
                at_s = [second - begin for second in seconds]
                above.plot(at_s, [run.p99_s[each] for each in seconds], label=label, **look)
                below.plot(at_s, [run.pods[each] for each in seconds], **look)
        above.axhline(DEADLINE_S, color="0.4", linewidth=1)
        above.set_title("Simulated: ten times the load from second 0 on")
        above.set_ylabel("p99 of a second's requests (s)")
        below.set_ylabel("Pods")
        below.set_xlabel("Seconds from the spike's beginning")
        for axes in (above, below):
            axes.set_ylim(bottom=0)
        legend_below(above)
        figure.savefig(path, format="png", dpi=DPI)
    return path
