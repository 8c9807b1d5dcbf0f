"""A load that grows tenfold at once: how long answers are late, ours beside Knative's rule.

Simulated, with the same pods, start times, loads and arrivals for all rules: the scenario that the
rules were made with, and six that they were not. Ours runs live, too. The parts are in `elastic`.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Final

from load.experiments.elastic import spike_plot
from load.experiments.elastic.scenario import MADE_WITH, Scenario
from load.experiments.elastic.spiking import KNATIVE, OURS, RULES, SpikeTask, run_spike
from load.experiments.experiment import Experiment, Result, Settings, Table
from load.experiments.parallel_map import run_side_by_side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load.experiments.elastic.spiking import Spiked
    from load.experiments.experiment import Cell

SEEDS: Final = (1, 2, 3, 4, 5)
HELD_OUT_SEEDS: Final = (101, 102, 103)
_ODD: Final = replace(MADE_WITH, spike_at_s=91.0)
"""Begins between two plans of Knative's rule, not with one."""
HELD_OUT: Final = {
    "other seeds": _ODD,
    "5 times the load": replace(_ODD, times=5.0),
    "20 times the load": replace(_ODD, times=20.0, most_pods=120),
    "0.4 s a request, 3.5 a second": replace(_ODD, base_rps=3.5, infer_s=0.4, deadline_s=2.0),
    "pods start in 1 s": replace(_ODD, pod_start_s=1.0),
    "pods start in 10 s": replace(_ODD, pod_start_s=10.0),
}
COMPARED: Final = (OURS, KNATIVE)
"""In scenarios that the rules were not made with."""
LIVE: Final = Scenario(
    base_rps=1.0, infer_s=0.5, deadline_s=2.0, pod_start_s=1.5, load_s=0.1,
    first_pods=1, most_pods=8, spike_at_s=30.0, spike_s=60.0, after_s=10.0,
)  # fmt: skip
"""What two cores bear: eight pods whose requests sleep."""
_MEASURES: Final = (
    "late for s", "worst p99 s", "late %", "most pods", "pod-seconds", "failed",
)  # fmt: skip


def run(settings: Settings) -> Result:
    """Every rule with a spike that nobody could know of, and ours with one that came before."""
    seeds = settings.seeds or (SEEDS[:1] if settings.is_quick else SEEDS)
    held_out = settings.seeds or (HELD_OUT_SEEDS[:1] if settings.is_quick else HELD_OUT_SEEDS)
    known = [(rule, False) for rule in RULES] + [(OURS, True)]
    names = list(HELD_OUT)[1:2] if settings.is_quick else list(HELD_OUT)
    tasks = [SpikeTask(rule, is_known, seed) for rule, is_known in known for seed in seeds]
    tasks += [
        SpikeTask(rule, False, seed, HELD_OUT[name])
        for name in names
        for rule in COMPARED
        for seed in held_out
    ]
    if settings.live is not None:
        tasks += [SpikeTask(rule, False, seeds[0], LIVE) for rule in RULES]
    found = run_side_by_side(run_spike, tasks, settings, what="runs")
    outcomes = dict(zip(tasks, found, strict=True))

    def runs(rule: str, scenario: Scenario, of: Sequence[int], *, is_known: bool) -> list[Spiked]:
        return [outcomes[SpikeTask(rule, is_known, seed, scenario)] for seed in of]

    made_with = tuple(
        ("every ten minutes before" if is_known else "for the first time", rule,
         *_measures(runs(rule, MADE_WITH, seeds, is_known=is_known)))
        for rule, is_known in known
    )  # fmt: skip
    others = tuple(
        (name, rule, *_measures(runs(rule, HELD_OUT[name], held_out, is_known=False)))
        for name in names
        for rule in COMPARED
    )
    tables = [
        Table(_title(MADE_WITH, len(seeds)), ("spike", "rule", *_MEASURES), made_with),
        Table(
            f"Simulated: scenarios that the rules were not made with, {len(held_out)} seeds each",
            ("scenario", "rule", *_MEASURES),
            others,
        ),
    ]
    if settings.live is not None:
        tables.append(_live_table(settings, outcomes, seeds[0]))
    images = (spike_plot.draw(outcomes, seeds[0], settings.out),) if settings.out else ()
    return Result(tuple(tables), _notes(seeds, held_out), images)


def _title(scenario: Scenario, runs: int) -> str:
    return (
        f"Simulated: {scenario.base_rps:g} requests a second, then {scenario.times:g} times as "
        f"many; median of {runs} runs (least to most)"
    )


def _live_table(settings: Settings, outcomes: dict[SpikeTask, Spiked], seed: int) -> Table:
    assert settings.live is not None
    lived = settings.live.spike(LIVE, seed)
    rows = [("live", OURS, *_measures([lived]))]
    rows += [
        ("simulated", rule, *_measures([outcomes[SpikeTask(rule, False, seed, LIVE)]]))
        for rule in RULES
    ]
    return Table(
        f"Live on this machine: {LIVE.base_rps:g} request a second, then {LIVE.times:g}, each "
        f"{LIVE.infer_s:g} s; deadline {LIVE.deadline_s:g} s; at most {LIVE.most_pods} pods",
        ("run", "rule", *_MEASURES),
        tuple(rows),
    )


def _measures(runs: Sequence[Spiked]) -> tuple[Cell, ...]:
    return (
        _spread([each.late_s for each in runs]),
        _spread([each.worst_p99_s for each in runs]),
        _spread([100 * each.late_share for each in runs]),
        _spread([float(each.most_pods) for each in runs]),
        _spread([each.pod_s for each in runs]),
        sum(each.failed for each in runs),
    )


def _spread(values: Sequence[float]) -> str:
    low, middle, high = map(_short, (min(values), median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def _short(value: float) -> str:
    if value == inf:
        return "never"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _notes(seeds: Sequence[int], held_out: Sequence[int]) -> tuple[str, ...]:
    each = MADE_WITH
    return (
        f"seeds {_listed(seeds)}, and {_listed(held_out)} for the other scenarios; arrivals are "
        "Poisson",
        f"a pod answers one request at a time in {each.infer_s:g} s; it comes "
        f"{each.pod_start_s:g} s after it was asked for and loads the model in {each.load_s:g} s; "
        f"at most {each.most_pods} pods",
        f"late for: seconds from the spike's beginning until the 99th percentile of the requests "
        f"that came in a second stays within {each.deadline_s:g} s",
        "knative: load/experiments/elastic/kpa.py with its defaults, every 2 s, by the requests in "
        "the system at that time; scraped: by means of whole seconds, one each second",
        "predictive: the platform's default, every 0.5 s, forecasts every 2 s",
    )


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


EXPERIMENT: Final = Experiment(
    "spike",
    "Ten times the load at once: seconds until answers are in time, beside Knative's rule",
    run,
    has_live_part=True,
)
