"""The experiment liu-replicas, Liu 2025, section 3.1: 100 concurrent requests on one to four pods.

The thesis ran Ray Serve with 1 to 4 replicas and a target of 2 ongoing requests. Here: the same
rule, Knative's, and the platform's own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from matplotlib.axes import Axes

from registry.domain.model import Tier
from research.demo import TimedResponse, mean_s
from research.experiments.harness.axes import rows_of_axes
from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.liu.replicas_run import (
    INFER_S,
    LOAD_S,
    MAX_PODS,
    POD_START_S,
    PREDICTIVE,
    REQUESTS,
    RULES,
    ReplicasRun,
    service_s,
    simulate_replicas,
)
from research.experiments.liu.sizes import ABSENT, thesis_figures
from research.report.style import COLOURS, DPI, MARKERS, legend_below, styled

_ALONE, _FIRST, _FIRST_OF_OTHERS, _WARM = 6, 7, 8, 9
"""Numbers of the thesis's figures in `sigmaos_results.csv`."""
_PANEL_IN: Final = 2.4


def run(settings: Settings) -> Result:
    """The table and figure 3.1 of every rule; live with the platform's own."""
    thesis = thesis_figures(settings)
    runs = {f"{rule} (simulated)": simulate_replicas(rule) for rule in RULES}
    if settings.live is not None:
        live = settings.live.concurrent(REQUESTS, pods=MAX_PODS)
        settings.keep("live: concurrent", {"requests": REQUESTS, "pods": MAX_PODS}, live)
        runs[f"{PREDICTIVE} (live)"] = live
    images = () if settings.out is None else (_draw(runs, settings.out),)
    notes = [
        f"simulated at the thesis's pace: the first replica loads for {LOAD_S[Tier.REMOTE]:g} s, "
        f"later ones for {LOAD_S[Tier.DISK]:.2f} s, inference takes {INFER_S:g} s; pods start in "
        f"{POD_START_S:g} s (ours: the thesis does not state it); one request at a time per pod",
        "without the queue: a request's time at its pod, as in the thesis's figure 3.1",
    ]
    if not thesis:
        notes.append(ABSENT)
    if settings.live is None:
        notes.append("live runs were not requested")
    return Result((_table(runs, thesis),), tuple(notes), images)


def _table(runs: Mapping[str, ReplicasRun], thesis: Mapping[int, float]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            "ray serve (Liu, measured)",
            thesis.get(_ALONE),
            thesis.get(_FIRST),
            thesis.get(_FIRST_OF_OTHERS),
            thesis.get(_WARM),
            None,
            None,
            None,
        )
    ]
    rows += [(name, *_measures(each)) for name, each in runs.items()]
    return Table(
        f"3.1: {REQUESTS} concurrent requests to a cold T5-small, one to {MAX_PODS} pods",
        (
            "rule",
            "requests before a second pod serves",
            "first request s, without the queue",
            "first ones of other pods s",
            "later ones s (median)",
            "pods that served",
            "mean latency s",
            "all answered after s",
        ),
        tuple(rows),
    )


def _measures(each: ReplicasRun) -> tuple[Cell, ...]:
    first, *others = each.by_pod
    later = [service_s(response) for pod in each.by_pod for response in pod[1:]]
    return (
        each.alone,
        service_s(first[0]),
        mean_s([service_s(pod[0]) for pod in others]) if others else None,
        median(later) if later else None,
        len(each.by_pod),
        mean_s([response.latency_s for response in each.responses]),
        each.total_s,
    )


def _draw(runs: Mapping[str, ReplicasRun], folder: Path) -> Path:
    """Figure 3.1 per rule: each request by its end and its time without the queue."""
    path = folder / "figures.png"
    with styled():
        figure, panels = rows_of_axes([_PANEL_IN] * len(runs))
        longest_s = max(each.total_s for each in runs.values())
        for axes, (name, each) in zip(panels, runs.items(), strict=True):
            for number, pod in enumerate(each.by_pod):
                _draw_pod(axes, number, pod)
            axes.set_title(f"Figure 3.1, {name}")
            axes.set_ylabel("Without the queue (s)")
            axes.set_xlim(0, 1.02 * longest_s)
            axes.set_ylim(bottom=0)
        panels[-1].set_xlabel("Response after (s)")
        legend_below(panels[0])
        figure.savefig(path, dpi=DPI)
    return path


def _draw_pod(axes: Axes, number: int, responses: Sequence[TimedResponse]) -> None:
    """Hollow, and larger for each further pod: pods that start together respond together."""
    axes.plot(
        [each.latency_s for each in responses],
        [service_s(each) for each in responses],
        MARKERS[number],
        color=COLOURS[number],
        fillstyle="full" if number == 0 else "none",
        markersize=3 + 2.5 * number,
        label=f"pod {number}",
    )


EXPERIMENT: Final = Experiment(
    "liu-replicas",
    "Liu 2025, 3.1: 100 concurrent requests on one to four pods, against Ray Serve's rule",
    run,
    has_live_part=True,
)
