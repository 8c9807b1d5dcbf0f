"""The experiment burst: many models without copies, requested at once, and Knative's limits.

Simulated on a large cluster, and live on one machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from registry.domain.model import RoutingPolicy
from registry.domain.pod import default_slots
from research.experiments.elastic.burst_run import (
    INFER_S,
    LOAD_S,
    MAX_PODS,
    MODEL_BYTES,
    STORAGE_BYTES_PER_S,
    BurstResult,
    BurstTask,
    LiveBurst,
    run_burst,
)
from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.harness.rendering import listed, spread
from research.report.style import COLOURS, DPI, LINES, legend_below, one_axes, styled

SEEDS: Final = (1, 2, 3, 4, 5)
COUNTS: Final = (25, 100)
CEILING_P95_S: Final = {25: "2", 100: "25 (15 before)"}
CEILING_MAX_S: Final = {25: "5", 100: "25 (20 before)"}
"""knative/serving, test/performance/benchmarks/scale-from-zero/main.go: `slas`, by the number of
services; those for 100 were raised from 15 s and 20 s."""
LIVE_PODS: Final = 4
LIVE_MODEL: Final = "tiny-t5"


@dataclass(frozen=True, slots=True)
class BurstScenario:
    """The pool at the time of the burst."""

    label: str
    pod_start_s: float = 3.0
    is_known: bool = True
    pods_before: int = 0
    routing: RoutingPolicy = RoutingPolicy.AUTO

    def task(self, models: int, seed: int) -> BurstTask:
        return BurstTask(
            models, seed, self.pod_start_s, self.is_known, self.pods_before, self.routing
        )


SCENARIOS: Final = (
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
    """Both sizes of the burst in every scenario; then live, where there is a platform."""
    seeds = settings.seeds or (SEEDS[:1] if settings.is_quick else SEEDS)
    counts = COUNTS[:1] if settings.is_quick else COUNTS
    scenarios = SCENARIOS[::3] if settings.is_quick else SCENARIOS
    pairs = [(models, scenario) for models in counts for scenario in scenarios]
    tasks = [scenario.task(models, seed) for models, scenario in pairs for seed in seeds]
    results = dict(zip(tasks, parallel_map(run_burst, tasks, settings, what="runs"), strict=True))
    rows = tuple(
        _row(models, scenario, [results[scenario.task(models, seed)] for seed in seeds])
        for models, scenario in pairs
    )
    tables = [Table(f"Simulated; median of {len(seeds)} runs (lowest to highest)", _COLUMNS, rows)]
    notes = [
        f"seeds {listed(seeds)}; one request per model, all at the same moment; policy `auto` "
        "where none is named",
        f"simulated: models of {MODEL_BYTES / 1e6:g} MB that load alone in {LOAD_S:.2f} s over a "
        f"link of {STORAGE_BYTES_PER_S / 1e9:g} GB/s per pod, and infer in {INFER_S:g} s; at most "
        f"{MAX_PODS} pods of {default_slots()} slots",
        "Knative's ceilings are for the same number of services, of one hello-world pod each",
    ]
    if live := _live_rows(settings, counts):
        columns = (*_COLUMNS[:-1], "first pod after s")
        tables.append(Table("Live, on this machine", columns, tuple(live)))
        notes.append(f"live: models of one {LIVE_MODEL} each")
    images: tuple[Path, ...] = ()
    if settings.out is not None:
        shown = {
            each.label: results[each.task(max(counts), seeds[0])]
            for each in scenarios
            if each.routing is RoutingPolicy.AUTO
        }
        images = (_draw(shown, max(counts), settings.out),)
    return Result(tuple(tables), tuple(notes), images)


def _row(models: int, scenario: BurstScenario, runs: Sequence[BurstResult]) -> tuple[Cell, ...]:
    return (
        models,
        scenario.label,
        _spread_s([_quantile_s(each, 0.5) for each in runs]),
        _spread_s([_quantile_s(each, 0.95) for each in runs]),
        CEILING_P95_S[models],
        _spread_s([each.took_s[-1] for each in runs]),
        CEILING_MAX_S[models],
        _spread_count([each.loads for each in runs]),
        _spread_count([each.most_pods for each in runs]),
        sum(int(np.isinf(each.took_s).sum()) for each in runs),
    )


def _live_rows(settings: Settings, counts: Sequence[int]) -> list[tuple[Cell, ...]]:
    if settings.live is None:
        return []
    rows: list[tuple[Cell, ...]] = []
    for models in counts:
        runs = settings.live.burst(models, pods=LIVE_PODS, model=LIVE_MODEL)
        task = {"models": models, "pods": LIVE_PODS, "model": LIVE_MODEL}
        settings.keep("live: burst", task, runs)
        rows += [
            (
                models,
                f"no pods, at most {LIVE_PODS}{'' if each.is_known else '; times unknown'}",
                _quantile_s(each, 0.5),
                _quantile_s(each, 0.95),
                CEILING_P95_S[models],
                each.took_s[-1],
                CEILING_MAX_S[models],
                each.loads,
                each.pods,
                each.first_pod_s,
            )
            for each in runs
        ]
    return rows


def _quantile_s(run: BurstResult | LiveBurst, share: float) -> float:
    """The time within which this share of the requests had a response."""
    return float(np.quantile(run.took_s, share, method="higher"))


def _spread_s(values: Sequence[float]) -> str:
    return spread(values, median, "{:.2f}".format)


def _spread_count(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else spread(values, median, "{:g}".format)


def _draw(runs: Mapping[str, BurstResult], models: int, folder: Path) -> Path:
    """The share of models with a response over time, a line per label."""
    path = folder / "burst.png"
    with styled():
        title = f"Simulated: {models} models requested at once"
        figure, axes = one_axes(title, "Seconds", "Responses (%)", height_in=3.6)
        for number, (label, run) in enumerate(runs.items()):
            share = 100 * np.arange(len(run.took_s) + 1) / len(run.took_s)
            axes.step(
                [0.0, *run.took_s],
                share,
                where="post",
                label=label,
                color=COLOURS[number % len(COLOURS)],
                linestyle=LINES[number % len(LINES)],
            )
        axes.set_xlim(left=0)
        axes.set_ylim(0, 102)
        legend_below(axes)
        figure.savefig(path, format="png", dpi=DPI)
    return path


EXPERIMENT: Final = Experiment(
    "burst",
    "25 and 100 models requested at once from a pool without pods, and Knative's limits",
    run,
    has_live_part=True,
)
