"""Liu 2025, section 6.4: three workloads, each won by another policy; then `auto`, and a mixture.

The thesis leaves the choice per request open (6.5, 7.2). The mixture is all three workloads at
once: pairs of requests at random times, on pods that have room for one of the three models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load.experiments.experiment import Experiment, Result, Settings, Table
from load.experiments.liu.mixture import LOADS, Mixed, MixtureTask, play_mixture
from load.experiments.liu.runs import mean_s, percentile_s
from load.experiments.liu.scenarios import (
    FIXED_POLICIES,
    FULL,
    POLICIES,
    THESIS_SLEEP_S,
    WIN_SCENARIOS,
)
from load.experiments.liu.simulated import ModelTimings, times_of, win_run
from load.experiments.liu.thesis import ABSENT, thesis_figures
from load.experiments.parallel_map import run_side_by_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load.experiments.experiment import Cell
    from load.experiments.liu.runs import WinRun
    from load.experiments.liu.scenarios import WinScenario

THESIS_PACE: Final = ModelTimings(load_s=3.0, infer_s=1.0)
"""T5-small: cold start 3 s (6.3), inference 1 s (6.4.3)."""
_FIRST_FIGURE: Final = {"6.4.1": 44, "6.4.2": 47, "6.4.3": 52}
"""Number of each table's first cell in `sigmaos_results.csv`."""
OWN: Final = "each its winner"
"""In place of a policy in the mixture: each model has the policy that wins its workload."""


def run(settings: Settings) -> Result:
    """The thesis's three tables, and the mixture under light to heavy load."""
    seeds = settings.seeds or tuple(range(1, 3 if settings.is_quick else 11))
    thesis = thesis_figures(settings)
    settings.progress(0, 1, "6.4 simulated")
    live = settings.live.wins(FULL) if settings.live is not None else []
    simulated = _simulated(THESIS_PACE, THESIS_SLEEP_S, seeds[0])
    tables = [_wins_table(thesis, simulated, live)]
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
        notes.append("live runs were not asked for")
    return Result(tuple(tables), tuple(notes))


def _simulated(base: ModelTimings, sleep_s: float, seed: int) -> dict[tuple[str, str], WinRun]:
    return {
        (scenario.section, policy): win_run(
            scenario, times_of(scenario, base, sleep_s), policy, seed, sleep_s=sleep_s
        )
        for scenario in WIN_SCENARIOS
        for policy in POLICIES
    }


def _wins_table(
    thesis: Mapping[int, float],
    simulated: Mapping[tuple[str, str], WinRun],
    live: Sequence[WinRun],
) -> Table:
    measured = {(each.scenario.section, each.policy): each for each in live}
    rows = [
        row for scenario in WIN_SCENARIOS for row in _rows(scenario, thesis, simulated, measured)
    ]
    return Table(
        "6.4, tables 6.1 to 6.3: end-to-end seconds (with the warming request), and how much "
        "longer than the thesis's winner",
        ("workload", "policy", "Liu s", "simulated s", "live s", "longer: Liu s",
         "longer: simulated s", "longer: live s", "fastest of the fixed, simulated"),
        tuple(rows),
    )  # fmt: skip


def _rows(
    scenario: WinScenario,
    thesis: Mapping[int, float],
    simulated: Mapping[tuple[str, str], WinRun],
    measured: Mapping[tuple[str, str], WinRun],
) -> list[tuple[Cell, ...]]:
    section = scenario.section
    liu = {
        policy: thesis.get(_FIRST_FIGURE[section] + place)
        for place, policy in enumerate(FIXED_POLICIES)
    }
    ours = {policy: simulated[section, policy].total_s for policy in POLICIES}
    theirs = {
        policy: measured[section, policy].total_s
        for policy in POLICIES
        if (section, policy) in measured
    }
    best = min(FIXED_POLICIES, key=lambda policy: ours[policy])
    return [
        (
            section, policy, liu.get(policy), ours[policy], theirs.get(policy),
            _longer(liu, policy, scenario), _longer(ours, policy, scenario),
            _longer(theirs, policy, scenario), "yes" if policy == best else None,
        )
        for policy in POLICIES
    ]  # fmt: skip


def _longer(
    seconds: Mapping[str, float | None] | Mapping[str, float], policy: str, scenario: WinScenario
) -> float | None:
    mine, best = seconds.get(policy), seconds.get(scenario.winner)
    return None if mine is None or best is None else mine - best


def _fidelity_table(live: Sequence[WinRun], seed: int) -> Table:
    """The same at the pace that the live runs had."""
    rows: list[tuple[Cell, ...]] = []
    for scenario in WIN_SCENARIOS:
        mine = [each for each in live if each.scenario == scenario]
        pace = _pace(mine)
        sleep_s = mine[0].sleep_s
        for each in mine:
            again = win_run(
                scenario, times_of(scenario, pace, sleep_s), each.policy, seed, sleep_s=sleep_s
            )
            rows.append((
                scenario.section, each.policy, pace.load_s, pace.infer_s, each.concurrent_s,
                again.concurrent_s, again.concurrent_s / each.concurrent_s - 1,
                _ways(each), _ways(again),
            ))  # fmt: skip
    return Table(
        "Two concurrent requests, simulated with the medians of the live runs' own stages",
        ("workload", "policy", "load s", "infer s", "live s", "simulated s", "apart (share)",
         "decisions live", "decisions simulated"),
        tuple(rows),
    )  # fmt: skip


def _ways(run: WinRun) -> str:
    return ", ".join(sorted(f"{answer.reason} ({answer.start})" for answer in run.answers))


def _pace(runs: Sequence[WinRun]) -> ModelTimings:
    answers = [answer for each in runs for answer in each.answers]
    loads_s = [answer.stages_s.get("load", 0.0) for answer in answers if answer.start == "remote"]
    infers_s = [
        answer.stages_s.get("infer", 0.0) for answer in answers if answer.pod == answer.predict_pod
    ]
    return ModelTimings(percentile_s(loads_s or [0.0], 0.5), percentile_s(infers_s, 0.5))


def _mixture_table(settings: Settings, seeds: Sequence[int]) -> Table:
    pairs = 50 if settings.is_quick else 400
    tasks = [
        MixtureTask(policy, pairs_per_s, seed, pairs, THESIS_PACE)
        for pairs_per_s in LOADS
        for policy in (*POLICIES, OWN)
        for seed in seeds
    ]
    found = run_side_by_side(play_mixture, tasks, settings, what="mixture")
    grouped: dict[tuple[float, str], list[Mixed]] = {}
    for task, mixed in zip(tasks, found, strict=True):
        grouped.setdefault((task.pairs_per_s, task.policy), []).append(mixed)
    return Table(
        f"The three workloads mixed: {pairs} pairs of concurrent requests at random times, "
        f"over {len(seeds)} seeds",
        ("pairs per s", "policy", "mean latency s (of seeds: lowest to highest)", "p99 s",
         "cold starts", "against the best fixed policy"),
        tuple(_mixture_row(key, grouped) for key in grouped),
    )  # fmt: skip


def _mixture_row(
    key: tuple[float, str], grouped: Mapping[tuple[float, str], Sequence[Mixed]]
) -> tuple[Cell, ...]:
    pairs_per_s, policy = key
    mine = grouped[key]
    means = [each.mean_s for each in mine]
    best = min(mean_s([each.mean_s for each in grouped[pairs_per_s, one]]) for one in POLICIES[:-1])
    return (
        pairs_per_s, policy, f"{mean_s(means):.2f} ({min(means):.2f} to {max(means):.2f})",
        mean_s([each.p99_s for each in mine]), mean_s([each.cold_starts for each in mine]),
        f"{mean_s(means) / best - 1:+.1%}",
    )  # fmt: skip


EXPERIMENT: Final = Experiment(
    "liu-wins",
    "Liu 2025, 6.4: three workloads, each won by another policy; `auto` on each and on their mix",
    run,
    has_live_part=True,
)
