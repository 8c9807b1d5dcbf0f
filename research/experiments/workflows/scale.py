"""The experiment workflow-scale: GILL at one rate on 1 to 1,000 devices, with the time of plans.

Zhang et al. 2025, section 8.5, figures 13 and 14. Simulated. The time of each plan is charged to
virtual time by a table that `python -m benchmarks workflows` has measured once.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Final

from research.experiments.harness.experiment import Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.harness.rendering import spread
from research.experiments.workflows import durations
from research.simulated_workflows import constants
from research.simulated_workflows.applications import FILE, mean_work_s
from research.simulated_workflows.simulation import (
    WorkflowRunResult,
    WorkflowTask,
    simulate_workflows,
)

DEVICES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
ALL_DEVICES_MS: Final = {
    1: 0.17,
    2: 0.19,
    4: 0.32,
    8: 1.15,
    16: 1.17,
    32: 1.28,
    64: 8.45,
    128: 146.0,
}
"""Mean CPU time of a plan that weighs all devices: `python -m benchmarks workflows`, two cores
shared with other work, AMD EPYC, Python 3.11."""
CANDIDATES_MS: Final = {
    1: 0.24, 2: 0.25, 4: 0.37, 8: 0.42, 16: 0.44, 32: 0.60, 64: 0.74, 128: 1.05, 256: 1.13,
    512: 1.23, 1000: 1.37,
}  # fmt: skip
"""Of a plan that weighs a few."""
SCHEDULERS: Final = 8
"""Of the second way. Chosen."""
BUSY_DEVICES: Final = 32
"""As many are busy for `LOAD_SHARE` of their time at the rate of all runs."""
MINUTES: Final = 1
_WAYS: Final = ("one scheduler", f"{SCHEDULERS} schedulers")
_NOTES: Final = (
    "Simulated; plans' times are charged, measured once by `make bench-workflows`.",
    "One scheduler plans over all devices; it is not simulated beyond 128, where each plan takes "
    "seconds.",
    f"Each of {SCHEDULERS} schedulers plans the runs that it owns, over the candidates of all "
    "devices. Of the others' steps it knows those that were sent, by model and device, without "
    "delay, as live ones do from the registry.",
)


def run(settings: Settings) -> Result:
    """Mean latency by number of devices: one scheduler over all, and several."""
    file = settings.required_file(FILE)
    seeds = settings.seeds or (durations.SEEDS[:1] if settings.is_quick else durations.SEEDS)
    sizes = DEVICES[:3] if settings.is_quick else DEVICES
    tasks = scale_tasks(file, seeds, sizes)
    found = parallel_map(simulate_workflows, tasks, settings, what="devices x schedulers")
    return Result((scale_table(tasks, found),), (*_NOTES, f"seeds {', '.join(map(str, seeds))}"))


def scale_tasks(file: Path, seeds: Sequence[int], sizes: Sequence[int]) -> list[WorkflowTask]:
    rate_per_s = constants.LOAD_SHARE * BUSY_DEVICES / mean_work_s("gill", random.Random(0))
    tasks = []
    for devices in sizes:
        for seed in seeds:
            several = WorkflowTask(
                "gill",
                "speculative",
                seed,
                devices,
                constants.MEMORY_BYTES["gill"],
                rate_per_s,
                file,
                MINUTES,
                planning_s=CANDIDATES_MS[devices] / 1e3,
                schedulers=SCHEDULERS,
                is_filtered=True,
            )
            if devices in ALL_DEVICES_MS:
                planning_s = ALL_DEVICES_MS[devices] / 1e3
                tasks.append(
                    replace(several, planning_s=planning_s, schedulers=1, is_filtered=False)
                )
            tasks.append(several)
    return tasks


def _way(task: WorkflowTask) -> str:
    return _WAYS[0] if task.schedulers == 1 else _WAYS[1]


def scale_table(tasks: Sequence[WorkflowTask], found: Sequence[WorkflowRunResult]) -> Table:
    seconds: dict[tuple[int, str], list[float]] = defaultdict(list)
    for task, result in zip(tasks, found, strict=True):
        seconds[task.devices, _way(task)].append(result.mean_s)
    rows = [
        (
            devices,
            ALL_DEVICES_MS.get(devices),
            CANDIDATES_MS[devices],
            *(_seconds(seconds[devices, way]) for way in _WAYS),
        )
        for devices in dict.fromkeys(task.devices for task in tasks)
    ]
    return Table(
        "Figures 13 and 14: mean latency of GILL in s over seeds, with the lowest and highest",
        ("devices", "plan over all, ms", "plan over candidates, ms", *_WAYS),
        tuple(rows),
    )


def _seconds(values: Sequence[float]) -> str | None:
    return spread(values, mean, "{:.2f}".format) if values else None


EXPERIMENT: Final = Experiment(
    name="workflow-scale",
    description="GILL on 1 to 1,000 devices with the time of plans: one scheduler over all "
    "devices, several that weigh a few, and one per group of devices; simulated",
    run=run,
)
