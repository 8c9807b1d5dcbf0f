"""The plot of the spike: the 99th percentile and the pods, second by second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from load.experiments.elastic.scenario import MADE_WITH
from load.experiments.elastic.spiking import KNATIVE, OURS, SpikeTask
from load.report.style import COLOURS, DPI, LINES, legend_below, rows_of_axes, styled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from load.experiments.elastic.spiking import Spiked

_BEFORE_S: Final = 20
_AFTER_S: Final = 60
_SHOWN: Final = {
    OURS: (OURS, False),
    f"{OURS}, earlier spikes known": (OURS, True),
    KNATIVE: (KNATIVE, False),
}
"""Rule, and whether earlier spikes are known, by label."""


def draw(outcomes: Mapping[SpikeTask, Spiked], seed: int, folder: Path) -> Path:
    """Write `spike.png`: one seed of both rules, ours also with earlier spikes."""
    path = folder / "spike.png"
    begin = int(MADE_WITH.spike_at_s)
    seconds = range(begin - _BEFORE_S, begin + _AFTER_S)
    at_s = [second - begin for second in seconds]
    with styled():
        figure, (above, below) = rows_of_axes([3.0, 2.6])
        for number, (label, (rule, is_known)) in enumerate(_SHOWN.items()):
            run = outcomes[SpikeTask(rule, is_known, seed)]
            look: dict[str, Any] = {"color": COLOURS[number], "linestyle": LINES[number]}
            above.plot(at_s, [run.p99_s[each] for each in seconds], label=label, **look)
            below.plot(at_s, [run.pods[each] for each in seconds], **look)
        above.axhline(MADE_WITH.deadline_s, color="0.4", linewidth=1)
        above.set_title("Simulated: ten times the load from second 0 on")
        above.set_ylabel("p99 of a second's requests (s)")
        below.set_ylabel("Pods")
        below.set_xlabel("Seconds from the spike's beginning")
        for axes in (above, below):
            axes.set_ylim(bottom=0)
        legend_below(above)
        figure.savefig(path, format="png", dpi=DPI)
    return path
