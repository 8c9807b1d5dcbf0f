"""A load that grows tenfold at once: how long answers are late, ours beside Knative's rule.

Simulated, with the same pods, start times, loads and arrivals for both. The parts are in `elastic`.
"""

from __future__ import annotations

from math import inf
from statistics import median
from typing import TYPE_CHECKING, Final

from load.experiments.elastic import spike_plot
from load.experiments.elastic.spiking import (
    BASE_RPS,
    DEADLINE_S,
    INFER_S,
    LOAD_S,
    MOST_PODS,
    POD_START_S,
    RULES,
    TIMES,
    SpikeTask,
    run_spike,
)
from load.experiments.experiment import Experiment, Result, Settings, Table
from load.experiments.side_by_side import run_side_by_side

if TYPE_CHECKING:
    from load.experiments.elastic.spiking import Spiked
    from load.experiments.experiment import Cell

SEEDS: Final = (1, 2, 3, 4, 5)


def run(settings: Settings) -> Result:
    """Both rules, with a spike that nobody could know of and with one that came before."""
    seeds = settings.seeds or (SEEDS[:1] if settings.is_quick else SEEDS)
    tasks = [
        SpikeTask(rule, is_known, seed)
        for is_known in (False, True)
        for rule in RULES
        for seed in seeds
    ]
    found = run_side_by_side(run_spike, tasks, settings, what="runs")
    outcomes = dict(zip(tasks, found, strict=True))
    rows = tuple(
        _row(rule, is_known, [outcomes[SpikeTask(rule, is_known, seed)] for seed in seeds])
        for is_known in (False, True)
        for rule in RULES
    )
    table = Table(
        f"Simulated: {BASE_RPS:g} requests a second, then {TIMES} times as many; "
        f"median of {len(seeds)} runs (least to most)",
        ("spike", "rule", "late for s", "worst p99 s", "late %", "most pods", "pod-seconds",
         "failed"),
        rows,
    )  # fmt: skip
    images = (spike_plot.draw(outcomes, seeds[0], settings.out),) if settings.out else ()
    return Result((table,), _notes(seeds), images)


def _row(rule: str, is_known: bool, runs: list[Spiked]) -> tuple[Cell, ...]:
    return (
        "every ten minutes before" if is_known else "for the first time",
        rule,
        _spread([each.late_s for each in runs]),
        _spread([each.worst_p99_s for each in runs]),
        _spread([100 * each.late_share for each in runs]),
        _spread([float(each.most_pods) for each in runs]),
        _spread([each.pod_s for each in runs]),
        sum(each.failed for each in runs),
    )


def _spread(values: list[float]) -> str:
    low, middle, high = (f"{each:.3g}" if each < inf else "never" for each in
                         (min(values), median(values), max(values)))  # fmt: skip
    return f"{middle} ({low} to {high})"


def _notes(seeds: tuple[int, ...]) -> tuple[str, ...]:
    return (
        f"seeds {', '.join(map(str, seeds))}; arrivals are Poisson",
        f"a pod answers one request at a time in {INFER_S:g} s; it comes {POD_START_S:g} s after it"
        f" was asked for and loads the model in {LOAD_S:g} s; at most {MOST_PODS} pods",
        f"late for: seconds from the spike's beginning until the 99th percentile of the requests "
        f"that came in a second stays within {DEADLINE_S:g} s",
        "knative: autoscaler/scaling/kpa.py with its defaults, every 2 s, with no delay of metrics",
        "predictive: the platform's default, every 0.5 s, forecasts every 2 s",
    )


EXPERIMENT: Final = Experiment(
    "spike",
    "Ten times the load at once: seconds until answers are in time, beside Knative's rule",
    run,
)
