"""The experiment liu-simple, Liu 2025, sections 6.2 and 6.3: sequential requests to one T5 model.

Runs ten requests, and sequences long enough to amortise cold starts: simulated with the thesis's
timings for three model sizes, live for the sizes given with `--model`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from registry.domain.pod import STAGES
from research.demo import FULL, SIMPLE_REQUESTS, SimpleRun, mean_s, mean_stages_s
from research.experiments.harness.experiment import (
    Cell,
    Experiment,
    ExperimentError,
    Result,
    Settings,
    Table,
)
from research.experiments.harness.parallel_map import group_results, parallel_map
from research.experiments.liu.amortisation import amortisation_table, live_amortisation_table
from research.experiments.liu.figures import Runs, cold_and_warm_s, draw_figures
from research.experiments.liu.simulated import simple_run
from research.experiments.liu.sizes import (
    ABSENT,
    AFTER,
    BEFORE,
    LARGEST,
    LARGEST_LOAD,
    SIZES,
    SizeTask,
    T5Size,
    count_spread,
    thesis_figures,
)

_COLD_AFTER: Final = 32
"""Key in `thesis_figures` of the one cold start that every model has under colocation."""


def run(settings: Settings) -> Result:
    """The tables of 6.2 and 6.3; the thesis's columns are empty without its file.

    Raises ExperimentError for a requested model other than the three sizes.
    """
    live_sizes = _live_sizes(settings)
    seeds = settings.seeds or tuple(range(1, 4 if settings.is_quick else 101))
    thesis = thesis_figures(settings)
    policies = (BEFORE, AFTER)
    tasks = [
        SizeTask(size, policy, seed) for size in SIZES for policy in policies for seed in seeds
    ]
    found = parallel_map(_simulate, tasks, settings, what="6.2 simulated")
    runs: dict[str, Runs] = {
        "simulated": group_results(tasks, found, lambda task: (task.size.model, task.policy)),
        "live": _live_runs(settings, live_sizes, seeds),
    }
    tables = [
        _simple_table(runs, thesis, seeds),
        _gain_table(runs, thesis),
        _requests_table(runs, seeds[0]),
        _stages_table(runs),
        amortisation_table(settings, thesis, seeds),
    ]
    measured = {
        size.model: cold_and_warm_s(runs["live"].get((size.model, BEFORE), [])) for size in SIZES
    }
    tables.append(_cold_start_table(measured, thesis))
    small = measured[SIZES[0].model]
    if settings.live is not None and small is not None and not settings.is_quick:
        tables.append(live_amortisation_table(settings.live, settings, small[0], seeds[0]))
    images: tuple[Path, ...] = ()
    if settings.out is not None:
        images = (draw_figures(runs, thesis, settings.out),)
    return Result(tuple(tables), tuple(_notes(settings, thesis, seeds)), images)


def _simulate(task: SizeTask) -> SimpleRun:
    size = task.size
    return simple_run(size.model, size.times, task.policy, task.seed, requests=task.requests)


def _live_sizes(settings: Settings) -> list[T5Size]:
    known = [size.model for size in SIZES]
    if unknown := set(settings.models) - set(known):
        raise ExperimentError(f"model must be one of {', '.join(known)}, was {min(unknown)!r}")
    return [size for size in SIZES if size.model in (settings.models or known[:1])]


def _live_runs(settings: Settings, sizes: Sequence[T5Size], seeds: Sequence[int]) -> Runs:
    if settings.live is None:
        return {}
    few = seeds[:1] if settings.is_quick else seeds[:3]
    plan = [(BEFORE, seed) for seed in few] + [(AFTER, few[0])]
    grouped: dict[tuple[str, str], list[SimpleRun]] = {}
    for size in sizes:
        runs = settings.live.simple(
            size.model,
            plan,
            requests=SIMPLE_REQUESTS,
            link_bytes_per_s=FULL.simple_link_bytes_per_s,
        )
        settings.keep("live: simple", {"model": size.model, "requests": SIMPLE_REQUESTS}, runs)
        for each in runs:
            grouped.setdefault((size.model, each.policy), []).append(each)
    return grouped


def _simple_table(
    runs: Mapping[str, Runs], thesis: Mapping[int, float], seeds: Sequence[int]
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for size in SIZES:
        for policy in (BEFORE, AFTER):
            is_before = policy == BEFORE
            simulated, live = (
                runs[kind].get((size.model, policy), []) for kind in ("simulated", "live")
            )
            cold = thesis.get(size.cold_before if is_before else _COLD_AFTER)
            rows.append(
                (
                    size.model,
                    policy,
                    None if cold is None else int(cold),
                    count_spread([run.cold_starts for run in simulated]),
                    count_spread([run.cold_starts for run in live]),
                    thesis.get(size.total_before if is_before else size.total_after),
                    _mean_total_s(simulated),
                    _mean_total_s(live),
                )
            )
    return Table(
        f"6.2, figure 6.1: {SIMPLE_REQUESTS} sequential requests, 8 pods; simulated over "
        f"{len(seeds)} seeds (mean, lowest to highest)",
        (
            "model",
            "policy",
            "cold starts: Liu",
            "cold starts: simulated",
            "cold starts: live",
            "total s: Liu",
            "total s: simulated",
            "total s: live",
        ),
        tuple(rows),
    )


def _gain_table(runs: Mapping[str, Runs], thesis: Mapping[int, float]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for size in SIZES:
        liu = thesis.get(size.gain)
        if liu is None and size.total_before in thesis and size.total_after in thesis:
            liu = thesis[size.total_before] - thesis[size.total_after]
        gains = [_gain(runs[kind], size.model) for kind in ("simulated", "live")]
        rows.append((size.model, liu, *(cell for gain in gains for cell in gain)))
    return Table(
        f"Time saved by {AFTER} over {BEFORE} in {SIMPLE_REQUESTS} requests",
        ("model", "Liu s", "simulated s", "simulated share", "live s", "live share"),
        tuple(rows),
    )


def _gain(runs: Runs, model: str) -> tuple[float | None, float | None]:
    before, after = (_mean_total_s(runs.get((model, policy), [])) for policy in (BEFORE, AFTER))
    if before is None or after is None:
        return None, None
    return before - after, 1 - after / before


def _requests_table(runs: Mapping[str, Runs], seed: int) -> Table:
    series = {
        f"{kind}: {policy}": by_model["t5-small", policy][0].answers
        for kind, by_model in runs.items()
        for policy in (BEFORE, AFTER)
        if ("t5-small", policy) in by_model
    }
    rows = [
        (number + 1, *(responses[number].latency_s for responses in series.values()))
        for number in range(SIMPLE_REQUESTS)
    ]
    return Table(
        f"Figure 6.2: latency of each request to t5-small in s, seed {seed}",
        ("request", *series),
        tuple(rows),
    )


def _stages_table(runs: Mapping[str, Runs]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for kind, by_model in runs.items():
        for policy in (BEFORE, AFTER):
            found = [each for run in by_model.get(("t5-small", policy), []) for each in run.answers]
            if found:
                means = mean_stages_s(found)
                rows.append((kind, policy, *(means[stage] for stage in STAGES)))
    title = "Figure 6.3: mean seconds per request to t5-small and stage"
    return Table(title, ("", "policy", *STAGES), tuple(rows))


def _cold_start_table(
    measured: Mapping[str, tuple[float, float] | None], thesis: Mapping[int, float]
) -> Table:
    """The thesis's text has no other number of its figure 3.2."""
    rows: list[tuple[Cell, ...]] = []
    for size in SIZES:
        live = measured[size.model]
        rows.append(
            (
                size.model,
                size.weights_mb,
                size.times.load_s,
                thesis.get(size.inference),
                *(live or (None, None)),
                size.weights_mb * 1e6 / FULL.simple_link_bytes_per_s,
            )
        )
    rows.append((*LARGEST, thesis.get(LARGEST_LOAD), None, None, None, None))
    return Table(
        "Figure 3.2: cold start and inference by model",
        (
            "model",
            "weights MB",
            "cold start s: Liu",
            "inference s: Liu",
            "load s: live",
            "inference s: live",
            "of the load, download s",
        ),
        tuple(rows),
    )


def _mean_total_s(runs: Sequence[SimpleRun]) -> float | None:
    return mean_s([run.total_s for run in runs]) if runs else None


def _notes(settings: Settings, thesis: Mapping[int, float], seeds: Sequence[int]) -> list[str]:
    notes = [
        f"seeds {seeds[0]} to {seeds[-1]}",
        "simulated at the thesis's pace: cold starts of 3, 6 and 17 s (6.3); inference of 1 s "
        "(6.2), for the larger two in proportion to their weights, as the text gives none",
    ]
    if not thesis:
        notes.append(ABSENT)
    if settings.live is None:
        notes.append("live runs were not requested")
    else:
        notes.append(
            "live: weights over a link of 100 MB/s per pod; the larger two only on request "
            "(--model t5-base --model t5-large)"
        )
    return notes


EXPERIMENT: Final = Experiment(
    "liu-simple",
    "Liu 2025, 6.2-6.3: ten requests to one of three T5; when cold starts are amortised",
    run,
    has_live_part=True,
)
