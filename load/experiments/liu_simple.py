"""Liu 2025, sections 6.2 and 6.3: ten sequential requests to one of three T5, and amortisation.

Simulated at the thesis's pace for three sizes; live with those that are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load.experiments.errors import ExperimentError
from load.experiments.experiment import Experiment, Result, Settings, Table
from load.experiments.liu.amortisation import amortisation_table
from load.experiments.liu.figures import draw_figures
from load.experiments.liu.runs import mean_s, mean_stages_s
from load.experiments.liu.scenarios import FULL, SIMPLE_REQUESTS
from load.experiments.liu.simulated import simple_run
from load.experiments.liu.sizes import AFTER, BEFORE, SIZES, Size, SizeTask, spread
from load.experiments.liu.thesis import ABSENT, thesis_figures
from load.experiments.parallel_map import run_side_by_side
from load.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from load.experiments.experiment import Cell
    from load.experiments.liu.runs import SimpleRun


_COLD_AFTER: Final = 32
"""Number of the thesis's figure: one cold start under colocation, whatever the model."""


def run(settings: Settings) -> Result:
    """Everything of 6.2 and 6.3; the thesis's column only where its figures are at hand.

    Raises ExperimentError where a model is asked for that is none of the three.
    """
    live_sizes = _live_sizes(settings)
    seeds = settings.seeds or tuple(range(1, 4 if settings.is_quick else 101))
    thesis = thesis_figures(settings)
    tasks = [SizeTask(size, policy, seed) for size in SIZES
             for policy in (BEFORE, AFTER) for seed in seeds]  # fmt: skip
    simulated = _grouped(tasks, run_side_by_side(_simple, tasks, settings, what="6.2 simulated"))
    live = _live_runs(settings, live_sizes, seeds)
    tables = [
        _simple_table(simulated, live, thesis, seeds),
        _gain_table(simulated, live, thesis),
        _requests_table(simulated, live, seeds[0]),
        _stages_table(simulated, live),
        amortisation_table(settings, thesis, seeds),
    ]
    images: tuple[Path, ...] = ()
    if settings.out is not None:
        kinds = {"simulated": simulated, "live": live}
        images = (draw_figures(kinds, thesis, settings.out),)
    return Result(tuple(tables), tuple(_notes(settings, thesis, seeds)), images)


def _simple(task: SizeTask) -> SimpleRun:
    size = task.size
    return simple_run(size.model, size.times, task.policy, task.seed, requests=task.requests)


def _grouped(
    tasks: Sequence[SizeTask], runs: Sequence[SimpleRun]
) -> dict[tuple[str, str], list[SimpleRun]]:
    grouped: dict[tuple[str, str], list[SimpleRun]] = {}
    for task, found in zip(tasks, runs, strict=True):
        grouped.setdefault((task.size.model, task.policy), []).append(found)
    return grouped


def _live_sizes(settings: Settings) -> list[Size]:
    known = [size.model for size in SIZES]
    if unknown := set(settings.models) - set(known):
        raise ExperimentError(f"model must be one of {', '.join(known)}, was {min(unknown)!r}")
    return [size for size in SIZES if size.model in (settings.models or known[:1])]


def _live_runs(
    settings: Settings, sizes: Sequence[Size], seeds: Sequence[int]
) -> dict[tuple[str, str], list[SimpleRun]]:
    if settings.live is None:
        return {}
    few = seeds[:1] if settings.is_quick else seeds[:3]
    plan = [(BEFORE, seed) for seed in few] + [(AFTER, few[0])]
    grouped: dict[tuple[str, str], list[SimpleRun]] = {}
    for size in sizes:
        for each in settings.live.simple(
            size.model,
            plan,
            requests=SIMPLE_REQUESTS,
            link_bytes_per_s=FULL.simple_link_bytes_per_s,
        ):
            grouped.setdefault((size.model, each.policy), []).append(each)
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
                None if cold is None else int(cold), spread([run.cold_starts for run in mine]),
                spread([run.cold_starts for run in ours]),
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


def _mean(values: Sequence[float]) -> float | None:
    return mean_s(values) if values else None


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
    else:
        notes.append(
            "live: weights over a link of 100 MB/s per pod; the larger two where they are asked "
            "for (--model t5-base --model t5-large)"
        )
    return notes


EXPERIMENT: Final = Experiment(
    "liu-simple",
    "Liu 2025, 6.2-6.3: ten requests to one of three T5; when cold starts are amortised",
    run,
    has_live_part=True,
)
