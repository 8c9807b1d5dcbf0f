"""The tables of the experiment workflows."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Final, TypeAlias

from research.experiments.harness.experiment import Cell, Table
from research.experiments.harness.rendering import spread
from research.experiments.workflows.accuracy import AccuracyTask
from research.simulated_workflows.applications import APPLICATIONS
from research.simulated_workflows.constants import GB
from research.simulated_workflows.placers import PREDICTORS
from research.simulated_workflows.simulation import WorkflowRunResult, WorkflowTask

POLICIES: Final = ("speculative", "greedy", "round-robin", "static", "reactive", "reactive-alone")
"""`reactive-alone`: one copy per device."""
Results: TypeAlias = "defaultdict[WorkflowTask, list[WorkflowRunResult]]"
"""By task without its seed, one result per seed."""


def _below_percent(first: Sequence[WorkflowRunResult], other: Sequence[WorkflowRunResult]) -> float:
    """By how much the first mean latency is below the other."""
    ratio = mean(each.mean_s for each in first) / mean(each.mean_s for each in other)
    return round(100 * (1 - ratio), 1)


def figure_tables(compared: Results, always: Results) -> list[Table]:
    """Figures 6 and 11, and 7 to 9."""
    found = {(task.application, task.policy): results for task, results in compared.items()}
    loading = {task.application: results for task, results in always.items()}
    latencies: list[tuple[Cell, ...]] = []
    details: list[tuple[Cell, ...]] = []
    for application in APPLICATIONS:
        ours = found[application, "speculative"]
        best = min(
            (found[application, policy] for policy in ("static", "reactive", "reactive-alone")),
            key=lambda results: mean(each.mean_s for each in results),
        )
        latencies.append(
            (
                application,
                *(_mean_s(found[application, policy]) for policy in POLICIES),
                _below_percent(ours, found[application, "greedy"]),
                _below_percent(ours, best),
            )
        )
        details += [_detail(application, each, found[application, each]) for each in POLICIES]
        details.append(_detail(application, "speculative, always", loading[application]))
    return [
        Table(
            "Figures 6 and 11: mean latency in s over seeds, with the lowest and highest",
            (
                "application",
                *POLICIES,
                "speculative below greedy, %",
                "below the best of static and both reactive, %",
            ),
            tuple(latencies),
        ),
        Table(
            "Figures 7 to 9, the same runs: means over seeds",
            (
                "application",
                "policy",
                "mean, s",
                "p95, s",
                "loads",
                "loads never used",
                "batch size",
                "steps foreseen, %",
                "running, %",
                "loading, %",
                "both, %",
                "of loading beside running, %",
            ),
            tuple(details),
        ),
    ]


def _mean_s(results: Sequence[WorkflowRunResult]) -> str:
    return spread([each.mean_s for each in results], mean, "{:.3f}".format)


def _detail(
    application: str, policy: str, results: Sequence[WorkflowRunResult]
) -> tuple[Cell, ...]:
    both = mean(each.both_share for each in results)
    loading = mean(each.loading_share for each in results)
    beside = None if both + loading == 0 else 100 * both / (both + loading)
    return (
        application,
        policy,
        mean(each.mean_s for each in results),
        mean(each.p95_s for each in results),
        mean(each.loads for each in results),
        mean(each.unused_loads for each in results),
        mean(each.batch for each in results),
        100 * mean(each.predicted_share for each in results),
        100 * mean(each.running_share for each in results),
        100 * loading,
        100 * both,
        beside,
    )


def change_table(results: Results) -> Table:
    """Figure 10."""
    rows = [
        (
            task.policy,
            spread([each.before_s for each in found], mean, "{:.3f}".format),
            spread([each.after_s for each in found], mean, "{:.3f}".format),
            round(
                100 * mean(each.after_s for each in found) / mean(each.before_s for each in found)
                - 100,
                1,
            ),
        )
        for task, found in results.items()
    ]
    return Table(
        "Figure 10, MIX: mean latency in s before GILL's requests are doubled and the others "
        "halved, and after",
        ("policy", "before", "after", "change, %"),
        tuple(rows),
    )


def accuracy_table(
    tasks: Sequence[AccuracyTask],
    shares: Sequence[tuple[float, float]],
    ceilings: Mapping[str, float],
) -> Table:
    """Figure 12. `ceilings`: by workflow."""
    by_cell: dict[tuple[str, str], list[float]] = defaultdict(list)
    for task, (likeliest, _) in zip(tasks, shares, strict=True):
        by_cell[task.workflow, task.predictor].append(100 * likeliest)
    rows: list[tuple[Cell, ...]] = [
        (
            workflow,
            *(spread(by_cell[workflow, each], mean, "{:.1f}".format) for each in PREDICTORS),
            round(100 * ceilings[workflow], 1),
        )
        for workflow in ceilings
    ]
    return Table(
        "Figure 12: likeliest next step right, in % (paper: 76 to 94 with its Markov model)",
        ("workflow", *PREDICTORS, "most that is possible"),
        tuple(rows),
    )


def pays_table(results: Results) -> Table:
    """Where speculation pays, over memory, the rate of loads and the accuracy of predictions."""
    rows: list[tuple[Cell, ...]] = []
    for task, found in results.items():
        if task.policy != "speculative":
            continue
        greedy = results[replace(task, policy="greedy")]
        rows.append(
            (
                task.application,
                round(task.memory_bytes / GB, 1),
                round(task.host_bytes_per_s / GB, 1),
                task.word_is_true if task.application == "knowledge-card" else None,
                mean(each.mean_s for each in found),
                mean(each.mean_s for each in greedy),
                _below_percent(found, greedy),
            )
        )
    return Table(
        "Where speculation pays: mean latency in s",
        (
            "application",
            "memory, GB",
            "loads, GB/s",
            "card in the prompt",
            "speculative",
            "greedy",
            "speculative below greedy, %",
        ),
        tuple(rows),
    )
