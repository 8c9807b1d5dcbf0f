"""Liu 2025, section 6.3: sequences so long that the initial cold starts are amortised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from research.demo import FULL, mean_s
from research.experiments.harness.experiment import Cell, Settings, Table
from research.experiments.harness.live_platform import LivePlatform
from research.experiments.harness.parallel_map import group_results, parallel_map
from research.experiments.liu.simulated import PODS, run_latencies_s, sequential
from research.experiments.liu.sizes import AFTER, BEFORE, SIZES, SizeTask, count_spread

THRESHOLD_S: Final = 0.01
"""Section 6.3: cold starts are amortised once mean latencies differ by less."""
LIVE_THRESHOLD_S: Final = 0.1
"""In live runs: minutes instead of half an hour."""
_LIVE_MARGIN: Final = 1.25
"""Length of the live sequences over the expected break-even."""


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
        rows.append(
            (
                size.model,
                count,
                before,
                mean_s([each.before_s for each in runs]),
                after,
                mean_s([each.after_s for each in runs]),
                liu,
                mean_s([(each.before_s - each.after_s) / count for each in runs]),
                count_spread([each.below_at for each in runs]),
            )
        )
    return Table(
        f"6.3: sequences as long as the thesis's break-even, over {len(few)} seeds",
        (
            "model",
            "requests",
            f"{BEFORE} s: Liu",
            f"{BEFORE} s: simulated",
            f"{AFTER} s: Liu",
            f"{AFTER} s: simulated",
            "difference per request s: Liu",
            "difference per request s: simulated",
            f"requests until below {THRESHOLD_S:g} s",
        ),
        tuple(rows),
    )


def amortise(task: SizeTask) -> Amortised:
    """A long sequence under both policies."""
    size = task.size
    before, after = (
        run_latencies_s(
            sequential(size.model, size.times, policy, task.seed, requests=task.requests)
        )
        for policy in (BEFORE, AFTER)
    )
    return amortised(before, after, THRESHOLD_S)


def amortised(
    before: NDArray[np.float64], after: NDArray[np.float64], threshold_s: float
) -> Amortised:
    """When cold starts are amortised, by the latencies of two sequences of one length."""
    counts = np.arange(1, before.size + 1)
    differs = (np.cumsum(before) - np.cumsum(after)) / counts >= threshold_s
    last = int(np.flatnonzero(differs)[-1]) + 1 if differs.any() else 0
    return Amortised(float(before.sum()), float(after.sum()), last + 1)


def live_amortisation_table(
    live: LivePlatform, settings: Settings, load_s: float, seed: int
) -> Table:
    """Both policies live, for longer than seven loads of `load_s` take to be amortised."""
    size = SIZES[0]
    expected = ceil((PODS - 1) * load_s / LIVE_THRESHOLD_S)
    requests = ceil(_LIVE_MARGIN * expected)
    runs = live.simple(
        size.model,
        [(BEFORE, seed), (AFTER, seed)],
        requests=requests,
        link_bytes_per_s=FULL.simple_link_bytes_per_s,
    )
    settings.keep("live: amortisation", {"model": size.model, "requests": requests}, runs)
    before, after = (np.array([each.latency_s for each in run.answers], np.float64) for run in runs)
    found = amortised(before, after, LIVE_THRESHOLD_S)
    return Table(
        f"6.3 live: from which request on mean latencies differ by less than {LIVE_THRESHOLD_S:g} "
        f"s (seven loads divided by it: expected); the thesis's {THRESHOLD_S:g} s would take "
        f"{LIVE_THRESHOLD_S / THRESHOLD_S:g} times as many",
        (
            "model",
            "load s",
            "expected",
            "live",
            "requests",
            "cold starts",
            f"{BEFORE} s",
            f"{AFTER} s",
        ),
        (
            (
                size.model,
                load_s,
                expected,
                found.below_at,
                requests,
                runs[0].cold_starts,
                found.before_s,
                found.after_s,
            ),
        ),
    )
