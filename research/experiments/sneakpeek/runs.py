"""Runs policies on drawn windows and scores their plans against the true labels."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from research.experiments.sneakpeek.demo_data import DemoApplication, read_applications
from research.experiments.sneakpeek.workload import DrawnWindow, Workload, draw_window, variants_of
from variants.planning.search import plan_window
from variants.planning.window import SHORT_CIRCUIT, SelectionOptions, SelectionPlan, penalty_of_one


@dataclass(frozen=True, slots=True)
class Task:
    """Some windows of a seed, planned by one policy."""

    folder: Path
    load: Workload
    policy: str
    options: SelectionOptions | None
    """None: the policy's own."""
    seed: int
    windows: int


@dataclass(frozen=True, slots=True)
class Score:
    """Means over the requests of a task."""

    utility: float
    """Recall for the true label, less the penalty."""
    expected_utility: float
    accuracy: float
    """Recall for the true label, whatever the lateness."""
    correct: float
    """Share of right answers; NaN for synthetic variants."""
    violation_s: float
    """max(0, completion - deadline)."""
    late: float
    """Share of requests."""
    short_circuits: float
    """Share of requests."""
    planning_s: float
    """Processor time per window."""


@lru_cache(maxsize=2)
def applications_in(folder: Path) -> Sequence[DemoApplication]:
    return read_applications(folder)


def run_task(task: Task) -> Score:
    """Windows depend on seed and workload only: every policy gets the same."""
    apps = applications_in(task.folder)
    rows: list[tuple[float, ...]] = []
    planning_s = 0.0
    for at in range(task.windows):
        drawn = draw_window(apps, task.load, np.random.default_rng((task.seed, at)))
        started_s = time.thread_time()
        plan = plan_window(task.policy, drawn.window, task.options)
        planning_s += time.thread_time() - started_s
        rows += _scored(apps, task.load, drawn, plan)
    utility, expected, accuracy, correct, violation_s, late, short = np.mean(rows, axis=0).tolist()
    planned_s = planning_s / task.windows
    return Score(utility, expected, accuracy, correct, violation_s, late, short, planned_s)


def _scored(
    apps: Sequence[DemoApplication], load: Workload, drawn: DrawnWindow, plan: SelectionPlan
) -> list[tuple[float, ...]]:
    deadlines = {each.id: each.deadline_s for each in drawn.window.requests}
    profiles = [{each.name: each for each in variants_of(app, load)} for app in apps]
    rows: list[tuple[float, ...]] = []
    for each in plan.assignments:
        truth = drawn.truth[each.request]
        app, is_short = apps[truth.application], each.variant == SHORT_CIRCUIT
        name = each.variant.removesuffix(truth.copy)
        if is_short:
            recall = (
                app.look[load.k].recalls[truth.label]
                if load.look_accuracy is None
                else load.look_accuracy
            )
            name = "look"
        else:
            recall = profiles[truth.application][name].recalls[truth.label]
        correct = np.nan
        if load.variation is None and load.look_accuracy is None:
            correct = float(app.predicted[name][truth.example] == truth.label)
        deadline = deadlines[each.request]
        in_time = 1.0 - penalty_of_one(load.penalty, deadline, each.completion_s)
        late_s = max(0.0, each.completion_s - deadline)
        rows.append(
            (
                recall * in_time,
                each.utility,
                recall,
                correct,
                late_s,
                float(late_s > 0),
                float(is_short),
            )
        )
    return rows
