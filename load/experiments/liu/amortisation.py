"""Liu 2025, section 6.3: sequences so long that the initial cold starts are amortised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from load.experiments.harness.experiment import Settings, Table
from load.experiments.harness.parallel_map import group_results, parallel_map
from load.experiments.liu.runs import mean_s
from load.experiments.liu.simulated import run_latencies_s, sequential
from load.experiments.liu.sizes import AFTER, BEFORE, SIZES, SizeTask, count_spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load.experiments.harness.experiment import Cell

THRESHOLD_S: Final = 0.01
"""Section 6.3: cold starts are amortised once mean latencies differ by less."""


@dataclass(frozen=True, slots=True)
class Amortised:
    """One seed's sequence under both policies. Seconds."""

    before_s: float
    after_s: float
    below_at: int
    """From this request on the mean latencies differ by less than the threshold."""


def amortisation_table(
    settings: Settings, thesis: Mapping[int, float], seeds: Sequence[int]
) -> Table:
    """Both policies over the thesis's break-even number of requests, for few of the seeds."""
    few = seeds[: 1 if settings.is_quick else 10]
    sizes = SIZES[:1] if settings.is_quick else SIZES
    tasks = [SizeTask(size, "", seed, size.break_even_requests) for size in sizes for seed in few]
    found = parallel_map(amortise, tasks, settings, what="6.3 simulated")
    rows: list[tuple[Cell, ...]] = []
    for size, runs in group_results(tasks, found, lambda task: task.size).items():
        count = size.break_even_requests
        before, after = thesis.get(size.many_before), thesis.get(size.many_after)
        liu = None if before is None or after is None else (before - after) / count
        rows.append((
            size.model, count, before, mean_s([each.before_s for each in runs]),
            after, mean_s([each.after_s for each in runs]),
            liu, mean_s([(each.before_s - each.after_s) / count for each in runs]),
            count_spread([each.below_at for each in runs]),
        ))  # fmt: skip
    return Table(
        f"6.3: sequences as long as the thesis's break-even, over {len(few)} seeds",
        ("model", "requests", f"{BEFORE} s: Liu", f"{BEFORE} s: simulated", f"{AFTER} s: Liu",
         f"{AFTER} s: simulated", "difference per request s: Liu",
         "difference per request s: simulated", f"requests until below {THRESHOLD_S:g} s"),
        tuple(rows),
    )  # fmt: skip


def amortise(task: SizeTask) -> Amortised:
    """A long sequence under both policies."""
    size = task.size
    before, after = (
        run_latencies_s(
            sequential(size.model, size.times, policy, task.seed, requests=task.requests)
        )
        for policy in (BEFORE, AFTER)
    )
    counts = np.arange(1, task.requests + 1)
    differs = (np.cumsum(before) - np.cumsum(after)) / counts >= THRESHOLD_S
    last = int(np.flatnonzero(differs)[-1]) + 1 if differs.any() else 0
    return Amortised(float(before.sum()), float(after.sum()), last + 1)
