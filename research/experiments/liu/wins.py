"""The experiment liu-wins, Liu 2025, section 6.4: three workloads, each with another best policy.

The thesis leaves open how to choose a policy per request (6.5, 7.2), as `auto` does: `auto` runs on
each workload and on a mixture of all three.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from research.demo import (
    FIXED_POLICIES,
    FULL,
    POLICIES,
    THESIS_SLEEP_S,
    WIN_SCENARIOS,
    WinRun,
    WinScenario,
    mean_s,
    percentile_s,
)
from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import group_results, parallel_map
from research.experiments.harness.rendering import spread
from research.experiments.liu.equations import PRINTED, Factors
from research.experiments.liu.mixture import (
    LOADS,
    OWN_WINNER,
    MixtureResult,
    MixtureTask,
    simulate_mixture,
)
from research.experiments.liu.simulated import ModelTimings, scenario_timings, win_run
from research.experiments.liu.sizes import ABSENT, thesis_figures
from research.experiments.liu.win_figures import draw_stages, stages_table

Totals = Mapping[tuple[str, str], float]
"""End-to-end seconds by section and policy."""


THESIS_PACE: Final = ModelTimings(load_s=3.0, infer_s=1.0)
"""T5-small: cold start 3 s (6.3), inference 1 s (6.4.3)."""
_FIRST_FIGURE: Final = {"6.4.1": 44, "6.4.2": 47, "6.4.3": 52}
"""Number of each table's first cell in `sigmaos_results.csv`."""


def run(settings: Settings) -> Result:
    """The thesis's three tables, and a table of the mixture under light to heavy load."""
    seeds = settings.seeds or tuple(range(1, 3 if settings.is_quick else 11))
    thesis = thesis_figures(settings)
    settings.progress(0, 1, "6.4 simulated")
    live = settings.live.wins(FULL) if settings.live is not None else []
    if live:
        settings.keep("live: wins", FULL, live)
    simulated = [
        win_run(
            scenario,
            scenario_timings(scenario, THESIS_PACE),
            policy,
            seeds[0],
            sleep_s=THESIS_SLEEP_S,
        )
        for scenario in WIN_SCENARIOS
        for policy in POLICIES
    ]
    runs = {"simulated": simulated, "live": live}
    tables = [
        _wins_table(thesis, simulated, live),
        stages_table(runs),
        _equations_table(thesis, simulated),
    ]
    if live:
        tables.append(_fidelity_table(live, seeds[0]))
    tables.append(_mixture_table(settings, seeds))
    notes = [
        "simulated at the thesis's pace: cold start 3 s, inference 1 s; 5 s as in the thesis",
        f"mixture over seeds {seeds[0]} to {seeds[-1]}; simulated only",
    ]
    if not thesis:
        notes.append(ABSENT)
    if settings.live is None:
        notes.append("live runs were not requested")
    images = () if settings.out is None else (draw_stages(runs, settings.out),)
    return Result(tuple(tables), tuple(notes), images)


def _wins_table(
    thesis: Mapping[int, float], simulated: Sequence[WinRun], live: Sequence[WinRun]
) -> Table:
    sources = [_thesis_totals(thesis), _totals(simulated), _totals(live)]
    rows = [row for scenario in WIN_SCENARIOS for row in _rows(scenario, sources)]
    return Table(
        "6.4, tables 6.1 to 6.3: end-to-end seconds (with the warming request), and how much "
        "longer than the thesis's winner",
        (
            "workload",
            "policy",
            "Liu s",
            "simulated s",
            "live s",
            "longer: Liu s",
            "longer: simulated s",
            "longer: live s",
            "fastest of the fixed, simulated",
        ),
        tuple(rows),
    )


def _thesis_totals(thesis: Mapping[int, float]) -> Totals:
    return {
        (section, policy): thesis[first + place]
        for section, first in _FIRST_FIGURE.items()
        for place, policy in enumerate(FIXED_POLICIES)
        if first + place in thesis
    }


def _totals(runs: Sequence[WinRun]) -> Totals:
    return {(each.scenario.section, each.policy): each.total_s for each in runs}


def _rows(scenario: WinScenario, sources: Sequence[Totals]) -> list[tuple[Cell, ...]]:
    section = scenario.section
    _, simulated, _ = sources
    best = min(FIXED_POLICIES, key=lambda policy: simulated[section, policy])
    return [
        (
            section,
            policy,
            *(totals.get((section, policy)) for totals in sources),
            *(_longer(totals, scenario, policy) for totals in sources),
            "yes" if policy == best else None,
        )
        for policy in POLICIES
    ]


def _equations_table(thesis: Mapping[int, float], simulated: Sequence[WinRun]) -> Table:
    """The printed equations for the second of the two requests; the first one is under way."""
    found = {(each.scenario.section, each.policy): each.concurrent_s for each in simulated}
    printed = {
        (scenario.section, policy): equation(_factors(scenario))
        for scenario in WIN_SCENARIOS
        for policy, equation in PRINTED.items()
    }
    sources = [printed, found, _thesis_totals(thesis)]
    rows = [
        (
            scenario.section,
            policy,
            printed[scenario.section, policy],
            found[scenario.section, policy],
            *(_longer(totals, scenario, policy) for totals in sources),
        )
        for scenario in WIN_SCENARIOS
        for policy in FIXED_POLICIES
    ]
    return Table(
        "6.5: equations 1 to 3 as printed, for the second of the two requests (n = 1), and how "
        "much longer than the thesis's winner",
        (
            "workload",
            "policy",
            "printed s",
            "simulated s",
            "longer: printed s",
            "longer: simulated s",
            "longer: Liu s",
        ),
        tuple(rows),
    )


def _factors(scenario: WinScenario) -> Factors:
    times = scenario_timings(scenario, THESIS_PACE)
    return Factors(times.load_s, times.infer_s, times.postprocess_s, times.network_s, ongoing=1)


def _longer(totals: Totals, scenario: WinScenario, policy: str) -> float | None:
    """Seconds more than the thesis's winner of the workload."""
    mine, least = (totals.get((scenario.section, each)) for each in (policy, scenario.winner))
    return None if mine is None or least is None else mine - least


def _fidelity_table(live: Sequence[WinRun], seed: int) -> Table:
    """The workloads simulated at the pace of the live runs."""
    rows: list[tuple[Cell, ...]] = []
    for scenario in WIN_SCENARIOS:
        runs = [each for each in live if each.scenario == scenario]
        pace = _pace(runs)
        sleep_s = runs[0].sleep_s
        times = scenario_timings(scenario, pace, sleep_s)
        for each in runs:
            again = win_run(scenario, times, each.policy, seed, sleep_s=sleep_s)
            rows.append(
                (
                    scenario.section,
                    each.policy,
                    pace.load_s,
                    pace.infer_s,
                    each.concurrent_s,
                    again.concurrent_s,
                    again.concurrent_s / each.concurrent_s - 1,
                    _decisions(each),
                    _decisions(again),
                )
            )
    return Table(
        "Two concurrent requests, simulated with the medians of the live runs' own stages",
        (
            "workload",
            "policy",
            "load s",
            "infer s",
            "live s",
            "simulated s",
            "apart (share)",
            "decisions live",
            "decisions simulated",
        ),
        tuple(rows),
    )


def _decisions(run: WinRun) -> str:
    return ", ".join(sorted(f"{response.reason} ({response.start})" for response in run.answers))


def _pace(runs: Sequence[WinRun]) -> ModelTimings:
    responses = [response for each in runs for response in each.answers]
    loads_s = [each.stages_s.get("load", 0.0) for each in responses if each.start == "remote"]
    infers_s = [
        each.stages_s.get("infer", 0.0) for each in responses if each.pod == each.predict_pod
    ]
    return ModelTimings(percentile_s(loads_s or [0.0], 0.5), percentile_s(infers_s, 0.5))


def _mixture_table(settings: Settings, seeds: Sequence[int]) -> Table:
    pairs = 50 if settings.is_quick else 400
    tasks = [
        MixtureTask(policy, pairs_per_s, seed, pairs, THESIS_PACE)
        for pairs_per_s in LOADS
        for policy in (*POLICIES, OWN_WINNER)
        for seed in seeds
    ]
    found = parallel_map(simulate_mixture, tasks, settings, what="mixture")
    grouped = group_results(tasks, found, lambda task: (task.pairs_per_s, task.policy))
    return Table(
        f"The three workloads mixed: {pairs} pairs of concurrent requests at random times, "
        f"over {len(seeds)} seeds",
        (
            "pairs per s",
            "policy",
            "mean latency s (of seeds: lowest to highest)",
            "p99 s",
            "cold starts",
            "against the best fixed policy",
        ),
        tuple(_mixture_row(key, grouped) for key in grouped),
    )


def _mixture_row(
    key: tuple[float, str], grouped: Mapping[tuple[float, str], Sequence[MixtureResult]]
) -> tuple[Cell, ...]:
    pairs_per_s, policy = key
    runs = grouped[key]
    means = [each.mean_s for each in runs]
    best = min(
        mean_s([each.mean_s for each in grouped[pairs_per_s, fixed]]) for fixed in FIXED_POLICIES
    )
    return (
        pairs_per_s,
        policy,
        spread(means, mean_s, "{:.2f}".format),
        mean_s([each.p99_s for each in runs]),
        mean_s([each.cold_starts for each in runs]),
        f"{mean_s(means) / best - 1:+.1%}",
    )


EXPERIMENT: Final = Experiment(
    "liu-wins",
    "Liu 2025, 6.4: three workloads, each won by another policy; `auto` on each and on their mix",
    run,
    has_live_part=True,
)
