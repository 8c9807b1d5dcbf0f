"""Burst from zero: many models that no pod has, asked for at once, beside Knative's own ceilings.

Simulated at a cluster's scale and live on one machine. The parts are in `elastic`.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from load.experiments.elastic import burst_plot
from load.experiments.elastic.bursting import (
    INFER_S,
    LOAD_S,
    MODEL_BYTES,
    MOST_PODS,
    STORAGE_BYTES_PER_S,
    BurstTask,
    run_burst,
)
from load.experiments.experiment import Experiment, Result, Settings, Table
from load.experiments.parallel_map import run_side_by_side
from registry.domain.model import RoutingPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from load.experiments.elastic.bursting import Burst
    from load.experiments.elastic.live_burst import LiveBurst
    from load.experiments.experiment import Cell

SEEDS: Final = (1, 2, 3, 4, 5)
COUNTS: Final = (25, 100)
CEILING_P95_S: Final = {25: "2", 100: "25 (15 before)"}
CEILING_MOST_S: Final = {25: "5", 100: "25 (20 before)"}
"""knative/serving, test/performance/benchmarks/scale-from-zero/main.go: `slas`, by services woken;
those for 100 were raised from 15 s and 20 s."""
LIVE_PODS: Final = 4
LIVE_MODEL: Final = "tiny-t5"


@dataclass(frozen=True, slots=True)
class BurstScenario:
    """What the pool is like when the burst comes."""

    words: str
    pod_start_s: float = 3.0
    is_known: bool = True
    pods_before: int = 0
    routing: RoutingPolicy = RoutingPolicy.AUTO

    def task(self, models: int, seed: int) -> BurstTask:
        """One run of it."""
        return BurstTask(
            models, seed, self.pod_start_s, self.is_known, self.pods_before, self.routing
        )


SETTINGS: Final = (
    *(
        BurstScenario(
            f"no pods; one starts in {start_s:g} s{'' if is_known else '; times unknown'}",
            start_s, is_known,
        )
        for is_known in (True, False)
        for start_s in (1.0, 3.0, 10.0)
    ),
    BurstScenario("no pods; one starts in 3 s; colocation-queueing",
            routing=RoutingPolicy.COLOCATION_QUEUEING),
    BurstScenario("8 pods without models", pods_before=8),
    BurstScenario("8 pods without models; colocation-queueing", pods_before=8,
            routing=RoutingPolicy.COLOCATION_QUEUEING),
)  # fmt: skip
_COLUMNS: Final = (
    "models", "pool", "p50 s", "p95 s", "Knative's p95 at most s", "longest s",
    "Knative's longest at most s", "loads", "pods", "failed",
)  # fmt: skip


def run(settings: Settings) -> Result:
    """Both sizes of the burst in every setting; then live, where there is a platform."""
    seeds = settings.seeds or (SEEDS[:1] if settings.is_quick else SEEDS)
    counts = COUNTS[:1] if settings.is_quick else COUNTS
    chosen = SETTINGS[::3] if settings.is_quick else SETTINGS
    pairs = [(models, setting) for models in counts for setting in chosen]
    tasks = [setting.task(models, seed) for models, setting in pairs for seed in seeds]
    outcomes = dict(
        zip(tasks, run_side_by_side(run_burst, tasks, settings, what="runs"), strict=True)
    )
    rows = tuple(
        _row(models, setting, [outcomes[setting.task(models, seed)] for seed in seeds])
        for models, setting in pairs
    )
    tables = [
        Table(f"Simulated; median of {len(seeds)} runs (least to most)", _COLUMNS, rows),
    ]
    live = _live(settings, counts)
    if live:
        tables.append(
            Table("Live, on this machine", (*_COLUMNS[:-1], "first pod after s"), tuple(live))
        )
    images = (_draw(settings.out, outcomes, chosen, max(counts), seeds[0]),) if settings.out else ()
    return Result(tuple(tables), _notes(seeds, has_live=bool(live)), images)


def _draw(
    folder: Path,
    outcomes: Mapping[BurstTask, Burst],
    settings: Sequence[BurstScenario],
    models: int,
    seed: int,
) -> Path:
    shown = [each for each in settings if each.routing is RoutingPolicy.AUTO]
    tasks = {each.words: each.task(models, seed) for each in shown}
    return burst_plot.draw(outcomes, tasks, folder)


def _row(models: int, setting: BurstScenario, runs: Sequence[Burst]) -> tuple[Cell, ...]:
    return (
        models,
        setting.words,
        _spread([_quantile_s(each, 0.5) for each in runs]),
        _spread([_quantile_s(each, 0.95) for each in runs]),
        CEILING_P95_S[models],
        _spread([each.took_s[-1] for each in runs]),
        CEILING_MOST_S[models],
        _whole([each.loads for each in runs]),
        _whole([each.most_pods for each in runs]),
        sum(int(np.isinf(each.took_s).sum()) for each in runs),
    )


def _live(settings: Settings, counts: Sequence[int]) -> list[tuple[Cell, ...]]:
    if settings.live is None:
        return []
    return [
        _live_row(models, each)
        for models in counts
        for each in settings.live.burst(models, pods=LIVE_PODS, model=LIVE_MODEL)
    ]


def _live_row(models: int, run: LiveBurst) -> tuple[Cell, ...]:
    return (
        models,
        f"no pods, at most {LIVE_PODS}{'' if run.is_known else '; times unknown'}",
        _quantile_s(run, 0.5),
        _quantile_s(run, 0.95),
        CEILING_P95_S[models],
        run.took_s[-1],
        CEILING_MOST_S[models],
        run.loads,
        run.pods,
        run.first_pod_s,
    )


def _quantile_s(run: Burst | LiveBurst, share: float) -> float:
    """What this share of the requests took at most."""
    return float(np.quantile(run.took_s, share, method="higher"))


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _whole(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{median(values):g} ({low} to {high})"


def _notes(seeds: Sequence[int], *, has_live: bool) -> tuple[str, ...]:
    notes = [
        f"seeds {', '.join(map(str, seeds))}; one request for each model, all at the same moment; "
        "policy `auto` where none is named",
        f"simulated: models of {MODEL_BYTES / 1e6:g} MB that load alone in {LOAD_S:.2f} s over a "
        f"link of {STORAGE_BYTES_PER_S / 1e9:g} GB/s per pod, and infer in {INFER_S:g} s; pods of "
        f"one slot, {MOST_PODS} at most",
        "Knative's ceilings are for as many services of a pod each, whose container says hello",
    ]
    if has_live:
        notes.append(f"live: models of one {LIVE_MODEL} each, pods of one slot")
    return tuple(notes)


EXPERIMENT: Final = Experiment(
    "burst",
    "25 and 100 models woken at once from a pool without pods, beside Knative's ceilings",
    run,
    has_live_part=True,
)
