"""The experiment spike: how long responses are late after a tenfold rise of the load.

Simulated, with the same pods, start times, loads and arrivals for all rules: the scenario with
which the rules were tuned, and six others. The predictive rule also runs live.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Final

from research.experiments.elastic.spike_run import (
    KNATIVE,
    PREDICTIVE,
    RULES,
    SpikeResult,
    SpikeTask,
    run_spike,
)
from research.experiments.elastic.spike_scenario import TUNED_WITH, SpikeScenario
from research.experiments.harness.axes import rows_of_axes
from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.harness.rendering import listed, spread
from research.report.style import COLOURS, DPI, LINES, legend_below, styled

SEEDS: Final = (1, 2, 3, 4, 5)
HELD_OUT_SEEDS: Final = (101, 102, 103)
_OTHER: Final = replace(TUNED_WITH, spike_at_s=91.0)
"""Starts between two plans of Knative's rule instead of at one."""
HELD_OUT: Final = {
    "other seeds": _OTHER,
    "5 times the load": replace(_OTHER, times=5.0),
    "20 times the load": replace(_OTHER, times=20.0, most_pods=120),
    "0.4 s a request, 3.5 a second": replace(_OTHER, base_rps=3.5, infer_s=0.4, deadline_s=2.0),
    "pods start in 1 s": replace(_OTHER, pod_start_s=1.0),
    "pods start in 10 s": replace(_OTHER, pod_start_s=10.0),
}
_COMPARED: Final = (PREDICTIVE, KNATIVE)
"""The rules that are compared in held-out scenarios."""
_LIVE: Final = SpikeScenario(
    base_rps=1.0,
    infer_s=0.5,
    deadline_s=2.0,
    pod_start_s=1.5,
    load_s=0.1,
    first_pods=1,
    most_pods=8,
    spike_at_s=30.0,
    spike_s=60.0,
    after_s=10.0,
)
"""Within the capacity of two cores: eight pods whose requests sleep."""
_MEASURES: Final = ("late for s", "worst p99 s", "late %", "most pods", "pod-seconds", "failed")
_PLOT_BEFORE_S: Final = 20
_PLOT_AFTER_S: Final = 60
_PLOTTED: Final = {
    PREDICTIVE: (PREDICTIVE, False),
    f"{PREDICTIVE}, earlier spikes known": (PREDICTIVE, True),
    KNATIVE: (KNATIVE, False),
}
"""Rule, and whether earlier spikes are known, by label."""


def run(settings: Settings) -> Result:
    """Every rule with an unforeseeable spike; the predictive one also after earlier spikes."""
    seeds = settings.seeds or (SEEDS[:1] if settings.is_quick else SEEDS)
    held_out = settings.seeds or (HELD_OUT_SEEDS[:1] if settings.is_quick else HELD_OUT_SEEDS)
    known = [(rule, False) for rule in RULES] + [(PREDICTIVE, True)]
    names = list(HELD_OUT)[1:2] if settings.is_quick else list(HELD_OUT)
    tasks = [SpikeTask(rule, is_known, seed) for rule, is_known in known for seed in seeds]
    tasks += [
        SpikeTask(rule, False, seed, HELD_OUT[name])
        for name in names
        for rule in _COMPARED
        for seed in held_out
    ]
    if settings.live is not None:
        tasks += [SpikeTask(rule, False, seeds[0], _LIVE) for rule in RULES]
    results = dict(zip(tasks, parallel_map(run_spike, tasks, settings, what="runs"), strict=True))

    def measures(
        rule: str, scenario: SpikeScenario, run_seeds: Sequence[int], *, is_known: bool = False
    ) -> tuple[Cell, ...]:
        tasks = [SpikeTask(rule, is_known, seed, scenario) for seed in run_seeds]
        return _measures([results[task] for task in tasks])

    tables = [
        Table(
            f"Simulated: {TUNED_WITH.base_rps:g} requests a second, then {TUNED_WITH.times:g} times"
            f" as many; median of {len(seeds)} runs (lowest to highest)",
            ("spike", "rule", *_MEASURES),
            tuple(
                (
                    "every ten minutes before" if is_known else "for the first time",
                    rule,
                    *measures(rule, TUNED_WITH, seeds, is_known=is_known),
                )
                for rule, is_known in known
            ),
        ),
        Table(
            f"Simulated: scenarios with which the rules were not tuned, {len(held_out)} seeds each",
            ("scenario", "rule", *_MEASURES),
            tuple(
                (name, rule, *measures(rule, HELD_OUT[name], held_out))
                for name in names
                for rule in _COMPARED
            ),
        ),
    ]
    if settings.live is not None:
        live = settings.live.spike(_LIVE, seeds[0])
        settings.keep("live: spike", {"scenario": _LIVE, "seed": seeds[0]}, live)
        simulated = (("simulated", rule, *measures(rule, _LIVE, seeds[:1])) for rule in RULES)
        tables.append(
            Table(
                f"Live on this machine: {_LIVE.base_rps:g} request a second, then {_LIVE.times:g}, "
                f"each {_LIVE.infer_s:g} s; deadline {_LIVE.deadline_s:g} s; at most "
                f"{_LIVE.most_pods} pods",
                ("run", "rule", *_MEASURES),
                (("live", PREDICTIVE, *_measures([live])), *simulated),
            )
        )
    images = (_draw(results, seeds[0], settings.out),) if settings.out else ()
    return Result(tuple(tables), _notes(seeds, held_out), images)


def _measures(runs: Sequence[SpikeResult]) -> tuple[Cell, ...]:
    return (
        _spread([each.late_s for each in runs]),
        _spread([each.worst_p99_s for each in runs]),
        _spread([100 * each.late_share for each in runs]),
        _spread([float(each.most_pods) for each in runs]),
        _spread([each.pod_s for each in runs]),
        sum(each.failed for each in runs),
    )


def _spread(values: Sequence[float]) -> str:
    return _short(values[0]) if len(values) == 1 else spread(values, median, _short)


def _short(value: float) -> str:
    if value == inf:
        return "never"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _notes(seeds: Sequence[int], held_out: Sequence[int]) -> tuple[str, ...]:
    each = TUNED_WITH
    return (
        f"seeds {listed(seeds)}, and {listed(held_out)} for the other scenarios; arrivals are "
        "Poisson",
        f"a pod serves one request at a time in {each.infer_s:g} s; it starts {each.pod_start_s:g} "
        f"s after it was requested and loads the model in {each.load_s:g} s; at most "
        f"{each.most_pods} pods",
        f"late for: seconds from the start of the spike until the 99th percentile of the requests "
        f"that arrive in a second stays within {each.deadline_s:g} s",
        "knative: research/experiments/elastic/kpa.py with its defaults, every 2 s, by the "
        "requests in the system at that time; scraped: by means of whole seconds, one each second",
        "predictive: the platform's default, every 0.5 s, forecasts every 2 s",
    )


def _draw(results: Mapping[SpikeTask, SpikeResult], seed: int, folder: Path) -> Path:
    """The 99th percentile and the pods of one seed, second by second."""
    path = folder / "spike.png"
    begin = int(TUNED_WITH.spike_at_s)
    seconds = range(begin - _PLOT_BEFORE_S, begin + _PLOT_AFTER_S)
    at_s = [second - begin for second in seconds]
    with styled():
        figure, (above, below) = rows_of_axes([3.0, 2.6])
        for number, (label, (rule, is_known)) in enumerate(_PLOTTED.items()):
            run = results[SpikeTask(rule, is_known, seed)]
            line: dict[str, Any] = {"color": COLOURS[number], "linestyle": LINES[number]}
            above.plot(at_s, [run.p99_s[each] for each in seconds], label=label, **line)
            below.plot(at_s, [run.pods[each] for each in seconds], **line)
        above.axhline(TUNED_WITH.deadline_s, color="0.4", linewidth=1)
        above.set_title("Simulated: ten times the load from second 0 on")
        above.set_ylabel("p99 of a second's requests (s)")
        below.set_ylabel("Pods")
        below.set_xlabel("Seconds from the start of the spike")
        for axes in (above, below):
            axes.set_ylim(bottom=0)
        legend_below(above)
        figure.savefig(path, format="png", dpi=DPI)
    return path


EXPERIMENT: Final = Experiment(
    "spike",
    "Ten times the load at once: seconds until responses are in time, compared with Knative's rule",
    run,
    has_live_part=True,
)
