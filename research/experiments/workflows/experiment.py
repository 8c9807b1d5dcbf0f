"""The experiment workflows: placement of steps and predictions, after Zhang et al. 2025.

Simulated. Figures 6 to 12, and where speculation pays; policies, costs and predictors are those of
the live scheduler.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from research.experiments.harness.experiment import Experiment, Result, Settings
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.workflows import durations
from research.experiments.workflows.accuracy import AccuracyTask, ceiling, next_step_accuracy
from research.experiments.workflows.figures import (
    POLICIES,
    Results,
    accuracy_table,
    change_table,
    figure_tables,
    pays_table,
)
from research.simulated_workflows import constants
from research.simulated_workflows.applications import FILE, GENERATORS
from research.simulated_workflows.placers import PREDICTORS
from research.simulated_workflows.simulation import (
    WorkflowTask,
    placement_tasks,
    simulate_workflows,
)

_RUNS: Final = 3000
_CHANGE_POLICIES: Final = ("speculative", "static", "reactive")
_MEMORIES_GB: Final = {"gill": (14.5, 18.5, 30.0), "knowledge-card": (20.0, 30.0, 85.0)}
"""The largest model and little more, about half of the models, all of them."""
_HOST_GB_PER_S: Final = (1.0, 4.0, 12.0)
_WORDS: Final = (0.0, 0.75, 1.0)
_NOTES: Final = (
    "Simulated: devices, links and loads are models; no part ran live.",
    "The paper gives no rates, sizes, times, agents or rounds: ours are in "
    "`research/simulated_workflows/constants.py`, most of them chosen.",
    "Arrivals: the two busiest hours of `gentd26_per_minute` from their begin, models mapped to "
    "workflows in turn, scaled to half of what the devices can do with batches of one.",
    "GenTD26: its requests ask for the base models of their minute, for the whole two hours. Times "
    "of bases, shares of LoRAs and load times are the trace's; which model takes how long to load, "
    "and which LoRAs exist, is chosen.",
    "A load costs what its evictions cost later requests, for all policies alike: production's "
    "price, by the models' rates, copies and load times. A device evicts by last use.",
    "`static` and `reactive` are policies after the paper's descriptions of Triton and Ray Serve, "
    "not those programs.",
)


def run(settings: Settings) -> Result:
    """Mean latencies by application and policy, and the accuracy of predictions."""
    file = settings.required_file(FILE)
    seeds = settings.seeds or (durations.SEEDS[:1] if settings.is_quick else durations.SEEDS)
    minutes = 2 if settings.is_quick else durations.MINUTES
    tasks = placement_tasks(file, seeds, minutes, policies=POLICIES)
    compared = _simulated(_as_long(tasks), settings)
    always = _simulated(_as_long(_always_tasks(file, seeds, minutes)), settings)
    changed = _simulated(change_tasks(file, seeds, is_quick=settings.is_quick), settings)
    pays = _simulated(pays_tasks(file, seeds[:1], is_quick=settings.is_quick), settings)
    runs = 200 if settings.is_quick else _RUNS
    scored = [
        AccuracyTask(workflow, predictor, seed, runs)
        for workflow in GENERATORS
        for predictor in PREDICTORS
        for seed in seeds
    ]
    shares = parallel_map(next_step_accuracy, scored, settings, what="predictors")
    tables = (
        *figure_tables(compared, always),
        change_table(changed),
        accuracy_table(scored, shares, {each: ceiling(each) for each in GENERATORS}),
        pays_table(pays),
    )
    return Result(tables, (*_NOTES, f"seeds {', '.join(map(str, seeds))}; {minutes} minutes"))


def _simulated(tasks: Sequence[WorkflowTask], settings: Settings) -> Results:
    found = parallel_map(simulate_workflows, tasks, settings, what="simulations")
    by_cell: Results = defaultdict(list)
    for task, result in zip(tasks, found, strict=True):
        by_cell[replace(task, seed=0)].append(result)
    return by_cell


def _as_long(tasks: Sequence[WorkflowTask]) -> list[WorkflowTask]:
    """Longer where requests take longer."""
    times = durations.TIMES_LONGER
    return [replace(task, minutes=task.minutes * times.get(task.application, 1)) for task in tasks]


def _always_tasks(file: Path, seeds: Sequence[int], minutes: int) -> list[WorkflowTask]:
    """With the paper's loads ahead, of all that is predicted."""
    tasks = placement_tasks(file, seeds, minutes, policies=["speculative"])
    return [replace(task, is_always_loading=True) for task in tasks]


def change_tasks(file: Path, seeds: Sequence[int], *, is_quick: bool) -> list[WorkflowTask]:
    """Figure 10: from the middle on GILL's requests are doubled, the others halved."""
    minutes = 2 if is_quick else durations.CHANGE_MINUTES
    tasks = placement_tasks(file, seeds, minutes, applications=["mix"], policies=_CHANGE_POLICIES)
    return [replace(task, changes_at_s=minutes * 30.0) for task in tasks]


def pays_tasks(file: Path, seeds: Sequence[int], *, is_quick: bool) -> list[WorkflowTask]:
    """Over memory, the rate of loads, and, on KNOWLEDGECARD, how often the card is known."""
    tasks = []
    for application, memories in _MEMORIES_GB.items():
        words = _WORDS if application == "knowledge-card" else (constants.WORD_IS_TRUE,)
        for task in placement_tasks(
            file,
            seeds,
            1 if is_quick else durations.MINUTES // 2,
            applications=[application],
            policies=("speculative", "greedy"),
        ):
            tasks += [
                replace(
                    task,
                    memory_bytes=memory * constants.GB,
                    host_bytes_per_s=rate * constants.GB,
                    word_is_true=word,
                )
                for memory in memories
                for rate in _HOST_GB_PER_S
                for word in words
            ]
    return tasks


EXPERIMENT: Final = Experiment(
    name="workflows",
    description="Workflows after Zhang et al.: speculative placement beside greedy, round-robin, "
    "static and reactive; accuracy of predictions; simulated",
    run=run,
)
