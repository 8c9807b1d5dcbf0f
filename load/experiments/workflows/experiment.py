"""The experiment workflows: placement of steps and predictions, after Zhang et al. 2025.

Simulated. Figures 11 and 12; policies, costs and predictors are those of the live scheduler.
"""

from __future__ import annotations

import random
from collections import defaultdict
from statistics import mean
from typing import TYPE_CHECKING, Final

from load.experiments.harness.experiment import (
    Experiment,
    ExperimentError,
    Result,
    Settings,
    Table,
)
from load.experiments.harness.parallel_map import parallel_map
from load.experiments.harness.rendering import spread
from load.experiments.workflows import constants
from load.experiments.workflows.accuracy import AccuracyTask, next_step_accuracy
from load.experiments.workflows.applications import APPLICATIONS, GENERATORS, mean_work_s
from load.experiments.workflows.arrivals import FILE
from load.experiments.workflows.simulation import WorkflowTask, simulate_workflows
from workflows.prediction.predictors import PREDICTORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from load.experiments.harness.experiment import Cell
    from load.experiments.workflows.simulation import WorkflowRunResult

POLICIES: Final = ("speculative", "greedy", "round-robin")
_RUNS: Final = 3000
_NOTES: Final = (
    "Simulated: devices, links and loads are models; no part ran live.",
    "Figures 6 to 10, 13 and 14 are not simulated: the baselines `static` and `reactive` are "
    "missing.",
    "The paper gives no rates, sizes, times, agents or rounds: ours are in "
    "`load/experiments/workflows/constants.py`, most of them chosen.",
    "Arrivals: the two busiest hours of `gentd26_per_minute` from their begin, models mapped to "
    "workflows in turn, scaled to half of what the devices can do with batches of one.",
    "A load that evicts models used in the last 30 s costs their reload, for all policies alike.",
)


def run(settings: Settings) -> Result:
    """Mean latencies by application and policy, and the accuracy of predictions."""
    file = settings.file(FILE)
    if file is None:
        raise ExperimentError(f"PILOTLIGHT_DATA must name a folder with {FILE}")
    seeds = settings.seeds or (constants.SEEDS[:1] if settings.is_quick else constants.SEEDS)
    minutes = 2 if settings.is_quick else constants.MINUTES
    tasks = placement_tasks(file, seeds, minutes)
    found = parallel_map(simulate_workflows, tasks, settings, what="applications x policies")
    runs = 200 if settings.is_quick else _RUNS
    scored = [
        AccuracyTask(workflow, predictor, seed, runs)
        for workflow in GENERATORS for predictor in PREDICTORS for seed in seeds
    ]  # fmt: skip
    shares = parallel_map(next_step_accuracy, scored, settings, what="predictors")
    tables = (*_latency_tables(tasks, found), _accuracy_table(scored, shares))
    return Result(tables, (*_NOTES, f"seeds {', '.join(map(str, seeds))}; {minutes} minutes"))


def placement_tasks(
    file: Path, seeds: Sequence[int], minutes: int, *,
    applications: Iterable[str] = APPLICATIONS, policies: Sequence[str] = POLICIES,
) -> list[WorkflowTask]:  # fmt: skip
    """At a rate of half of what the devices can do with batches of one."""
    tasks = []
    for application in applications:
        work_s = mean_work_s(application, random.Random(0))
        rate_per_s = constants.LOAD_SHARE * constants.DEVICES / work_s
        tasks += [
            WorkflowTask(
                application, policy, seed, constants.DEVICES, constants.MEMORY_BYTES[application],
                rate_per_s, file, minutes,
            )
            for policy in policies for seed in seeds
        ]  # fmt: skip
    return tasks


def _latency_tables(
    tasks: Sequence[WorkflowTask], found: Sequence[WorkflowRunResult]
) -> list[Table]:
    by_cell: dict[tuple[str, str], list[WorkflowRunResult]] = defaultdict(list)
    for task, result in zip(tasks, found, strict=True):
        by_cell[task.application, task.policy].append(result)
    rows: list[tuple[Cell, ...]] = []
    details: list[tuple[Cell, ...]] = []
    for application in APPLICATIONS:
        means = {policy: [r.mean_s for r in by_cell[application, policy]] for policy in POLICIES}
        ahead = 1 - mean(means["speculative"]) / mean(means["greedy"])
        rows.append(
            (application, *(spread(means[policy], mean, "{:.3f}".format) for policy in POLICIES),
             round(100 * ahead, 1))
        )  # fmt: skip
        details += [_detail(application, policy, by_cell[application, policy])
                    for policy in POLICIES]  # fmt: skip
    return [
        Table(
            "Figure 11: mean latency in s over seeds, with the lowest and highest",
            ("application", *POLICIES, "speculative below greedy, %"), tuple(rows),
        ),
        Table(
            "The same runs: means over seeds",
            ("application", "policy", "requests", "p95, s", "loads", "loads never used",
             "loading beside a batch, %", "batch size", "steps foreseen, %"), tuple(details),
        ),
    ]  # fmt: skip


def _detail(
    application: str, policy: str, results: Sequence[WorkflowRunResult]
) -> tuple[Cell, ...]:
    return (
        application, policy, results[0].requests, mean(each.p95_s for each in results),
        mean(each.loads for each in results), mean(each.unused_loads for each in results),
        100 * mean(each.beside_share for each in results), mean(each.batch for each in results),
        100 * mean(each.predicted_share for each in results),
    )  # fmt: skip


def _accuracy_table(tasks: Sequence[AccuracyTask], shares: Sequence[tuple[float, float]]) -> Table:
    by_cell: dict[tuple[str, str], list[float]] = defaultdict(list)
    for task, (likeliest, _) in zip(tasks, shares, strict=True):
        by_cell[task.workflow, task.predictor].append(100 * likeliest)
    rows: list[tuple[Cell, ...]] = [
        (workflow, *(round(mean(by_cell[workflow, each]), 1) for each in PREDICTORS))
        for workflow in GENERATORS
    ]
    return Table(
        "Figure 12: likeliest next step right, in % (paper: 76 to 94 with its Markov model)",
        ("workflow", *PREDICTORS), tuple(rows),
    )  # fmt: skip


EXPERIMENT: Final = Experiment(
    name="workflows",
    description="Workflows after Zhang et al.: speculative, greedy and round-robin placement; "
    "accuracy of predictions; simulated",
    run=run,
)
