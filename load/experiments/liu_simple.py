"""Liu 2025, sections 6.2 and 6.3: ten sequential requests to one of three T5, and amortisation.

Simulated at the thesis's pace for three sizes; live with the sizes that the platform is given, and
simulated again at the pace that the live run had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from load.experiments.experiment import Experiment, Result, Settings, Table
from load.experiments.liu.runs import STAGES, mean_s, mean_stages_s
from load.experiments.liu.scenarios import FULL, SIMPLE_REQUESTS
from load.experiments.liu.simulated import Times, latencies_s, sequential, simple_run
from load.experiments.liu.thesis import ABSENT, thesis_figures
from load.experiments.side_by_side import run_side_by_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load.experiments.experiment import Cell
    from load.experiments.liu.runs import SimpleRun

BEFORE: Final = "random"
"""SigmaOS's default scheduler: any machine, whatever it holds."""
AFTER: Final = "colocation"
THRESHOLD_S: Final = 0.01
"""Section 6.3: cold starts are amortised once mean latencies differ by less."""


@dataclass(frozen=True, slots=True)
class Size:
    """One T5 at the thesis's pace, and where the thesis's figures of it are."""

    model: str
    times: Times
    break_even_requests: int
    """Section 6.3: 7 further cold starts over the threshold."""
    cold_before: int
    """Number of the figure in `sigmaos_results.csv`, here and below; 0: there is none."""
    total_before: int = 0
    total_after: int = 0
    many_before: int = 0
    many_after: int = 0
    gain: int = 0


SIZES: Final = (
    Size("t5-small", Times(3.0, 1.0), 2_100, cold_before=29, total_before=22, total_after=23,
         many_before=39, many_after=38),
    Size("t5-base", Times(6.0, 3.7), 4_200, cold_before=30),
    Size("t5-large", Times(17.0, 12.2), 11_900, cold_before=31, gain=24),
)  # fmt: skip
"""Cold starts: section 6.3. Inference of T5-small: section 6.2, about 1 s; of the others, which
the text does not give, in proportion to the weights (242, 892, 2951 MB)."""
_COLD_AFTER: Final = 32


@dataclass(frozen=True, slots=True)
class Task:
    """What one process is given."""

    size: Size
    policy: str
    seed: int
    requests: int = SIMPLE_REQUESTS


@dataclass(frozen=True, slots=True)
class Amortised:
    """One seed's sequence under both policies. Seconds."""

    before_s: float
    after_s: float
    below_at: int
    """From this request on the mean latencies differ by less than the threshold."""


def run(settings: Settings) -> Result:
    """Everything of 6.2 and 6.3; the thesis's column only where its figures are at hand."""
    seeds = settings.seeds or tuple(range(1, 4 if settings.is_quick else 101))
    thesis = thesis_figures(settings)
    tasks = [Task(size, policy, seed) for size in SIZES
             for policy in (BEFORE, AFTER) for seed in seeds]  # fmt: skip
    simulated = _grouped(tasks, run_side_by_side(_simple, tasks, settings, what="6.2 simulated"))
    live = _live_runs(settings, seeds)
    tables = [
        _simple_table(simulated, live, thesis, seeds),
        _gain_table(simulated, live, thesis),
        _requests_table(simulated, live, seeds[0]),
        _stages_table(simulated, live),
        _amortisation_table(settings, thesis, seeds),
    ]
    return Result(tuple(tables), tuple(_notes(settings, thesis, seeds)))


def _simple(task: Task) -> SimpleRun:
    size = task.size
    return simple_run(size.model, size.times, task.policy, task.seed, requests=task.requests)


def _grouped(
    tasks: Sequence[Task], runs: Sequence[SimpleRun]
) -> dict[tuple[str, str], list[SimpleRun]]:
    grouped: dict[tuple[str, str], list[SimpleRun]] = {}
    for task, found in zip(tasks, runs, strict=True):
        grouped.setdefault((task.size.model, task.policy), []).append(found)
    return grouped


def _live_runs(settings: Settings, seeds: Sequence[int]) -> dict[tuple[str, str], list[SimpleRun]]:
    if settings.live is None:
        return {}
    few = seeds[:1] if settings.is_quick else seeds[:3]
    plan = [(BEFORE, seed) for seed in few] + [(AFTER, few[0])]
    found = settings.live.simple(
        "t5-small", plan, requests=SIMPLE_REQUESTS, link_bytes_per_s=FULL.simple_link_bytes_per_s
    )
    grouped: dict[tuple[str, str], list[SimpleRun]] = {}
    for each in found:
        grouped.setdefault(("t5-small", each.policy), []).append(each)
    return grouped


# Tables


def _simple_table(
    simulated: Mapping[tuple[str, str], list[SimpleRun]],
    live: Mapping[tuple[str, str], list[SimpleRun]],
    thesis: Mapping[int, float],
    seeds: Sequence[int],
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for size in SIZES:
        for policy in (BEFORE, AFTER):
            is_before = policy == BEFORE
            mine, ours = simulated[size.model, policy], live.get((size.model, policy), [])
            cold = thesis.get(size.cold_before if is_before else _COLD_AFTER)
            rows.append((
                size.model, policy,
                None if cold is None else int(cold), _spread([run.cold_starts for run in mine]),
                _spread([run.cold_starts for run in ours]),
                thesis.get(size.total_before if is_before else size.total_after),
                mean_s([run.total_s for run in mine]), _mean([run.total_s for run in ours]),
            ))  # fmt: skip
    return Table(
        f"6.2, figure 6.1: {SIMPLE_REQUESTS} sequential requests, 8 pods; simulated over "
        f"{len(seeds)} seeds (mean, lowest to highest)",
        ("model", "policy", "cold starts: Liu", "cold starts: simulated", "cold starts: live",
         "total s: Liu", "total s: simulated", "total s: live"),
        tuple(rows),
    )  # fmt: skip


def _gain_table(
    simulated: Mapping[tuple[str, str], list[SimpleRun]],
    live: Mapping[tuple[str, str], list[SimpleRun]],
    thesis: Mapping[int, float],
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for size in SIZES:
        liu = thesis.get(size.gain)
        if liu is None and size.total_before in thesis and size.total_after in thesis:
            liu = thesis[size.total_before] - thesis[size.total_after]
        ours_s, share = _gain(simulated, size.model)
        live_s, live_share = _gain(live, size.model)
        rows.append((size.model, liu, ours_s, share, live_s, live_share))
    return Table(
        f"What {AFTER} saves over {BEFORE} in {SIMPLE_REQUESTS} requests",
        ("model", "Liu s", "simulated s", "simulated share", "live s", "live share"),
        tuple(rows),
    )


def _gain(
    runs: Mapping[tuple[str, str], list[SimpleRun]], model: str
) -> tuple[float | None, float | None]:
    before = _mean([run.total_s for run in runs.get((model, BEFORE), [])])
    after = _mean([run.total_s for run in runs.get((model, AFTER), [])])
    if before is None or after is None:
        return None, None
    return before - after, 1 - after / before


def _requests_table(
    simulated: Mapping[tuple[str, str], list[SimpleRun]],
    live: Mapping[tuple[str, str], list[SimpleRun]],
    seed: int,
) -> Table:
    series = {
        f"{kind}: {policy}": runs["t5-small", policy][0]
        for kind, runs in (("simulated", simulated), ("live", live))
        for policy in (BEFORE, AFTER)
        if ("t5-small", policy) in runs
    }
    rows: list[tuple[Cell, ...]] = []
    for number in range(SIMPLE_REQUESTS):
        answers = [found.answers[number] for found in series.values()]
        rows.append((number + 1, *(answer.latency_s for answer in answers)))
    return Table(
        f"Figure 6.2: latency of each request to t5-small in s, seed {seed}",
        ("request", *series),
        tuple(rows),
    )


def _stages_table(
    simulated: Mapping[tuple[str, str], list[SimpleRun]],
    live: Mapping[tuple[str, str], list[SimpleRun]],
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for kind, runs in (("simulated", simulated), ("live", live)):
        for policy in (BEFORE, AFTER):
            found = [answer for run in runs.get(("t5-small", policy), []) for answer in run.answers]
            if found:
                means = mean_stages_s(found)
                rows.append((kind, policy, *(means[stage] for stage in STAGES)))
    return Table(
        "Figure 6.3: mean seconds per request to t5-small and stage", ("", "policy", *STAGES),
        tuple(rows),
    )  # fmt: skip


def _spread(counts: Sequence[int]) -> str | None:
    if not counts:
        return None
    if min(counts) == max(counts):
        return str(counts[0])
    return f"{mean_s(counts):.1f} ({min(counts)} to {max(counts)})"


def _mean(values: Sequence[float]) -> float | None:
    return mean_s(values) if values else None


# 6.3


def _amortisation_table(
    settings: Settings, thesis: Mapping[int, float], seeds: Sequence[int]
) -> Table:
    few = seeds[: 1 if settings.is_quick else 10]
    sizes = SIZES[:1] if settings.is_quick else SIZES
    tasks = [Task(size, "", seed, size.break_even_requests) for size in sizes for seed in few]
    found = run_side_by_side(amortise, tasks, settings, what="6.3 simulated")
    rows: list[tuple[Cell, ...]] = []
    for size in sizes:
        mine = [
            each for task, each in zip(tasks, found, strict=True) if task.size.model == size.model
        ]
        count = size.break_even_requests
        before, after = thesis.get(size.many_before), thesis.get(size.many_after)
        liu = None if before is None or after is None else (before - after) / count
        rows.append((
            size.model, count, before, mean_s([each.before_s for each in mine]),
            after, mean_s([each.after_s for each in mine]),
            liu, mean_s([(each.before_s - each.after_s) / count for each in mine]),
            _spread([each.below_at for each in mine]),
        ))  # fmt: skip
    return Table(
        f"6.3: sequences as long as the break-even that the thesis reckons, over {len(few)} seeds",
        ("model", "requests", f"{BEFORE} s: Liu", f"{BEFORE} s: simulated", f"{AFTER} s: Liu",
         f"{AFTER} s: simulated", "difference per request s: Liu",
         "difference per request s: simulated", f"requests until below {THRESHOLD_S:g} s"),
        tuple(rows),
    )  # fmt: skip


def amortise(task: Task) -> Amortised:
    """A long sequence under both policies."""
    before, after = (
        latencies_s(
            sequential(task.size.model, task.size.times, policy, task.seed, requests=task.requests)
        )
        for policy in (BEFORE, AFTER)
    )
    counts = np.arange(1, task.requests + 1)
    apart = (np.cumsum(before) - np.cumsum(after)) / counts >= THRESHOLD_S
    last = int(np.flatnonzero(apart)[-1]) + 1 if apart.any() else 0
    return Amortised(float(before.sum()), float(after.sum()), last + 1)


def _notes(settings: Settings, thesis: Mapping[int, float], seeds: Sequence[int]) -> list[str]:
    notes = [
        f"seeds {seeds[0]} to {seeds[-1]}",
        "simulated at the thesis's pace: cold starts of 3, 6 and 17 s (6.3); inference of 1 s "
        "(6.2), for the larger two in proportion to their weights, as the text gives none",
    ]
    if not thesis:
        notes.append(ABSENT)
    if settings.live is None:
        notes.append("live runs were not asked for")
    return notes


EXPERIMENT: Final = Experiment(
    "liu-simple",
    "Liu 2025, 6.2-6.3: ten requests to one of three T5; when cold starts are amortised",
    run,
    has_live_part=True,
)
