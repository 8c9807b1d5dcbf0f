"""The experiments elvinger-gpus and elvinger-load: plans of all planners on simulated GPUs.

All requests pass one router, `batch-round-robin`, and late ones are served, as in Elvinger 2024;
interference is one that no planner uses (`research.experiments.elvinger.simulated`).
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

from autoscaler.placement import planner_names, planner_of
from autoscaler.placement.plan import Placement
from autoscaler.placement.prediction import Predictor
from registry.domain.records import PlacedReplica
from research.experiments.elvinger.cells import (
    EFFICIENTNET,
    FILE,
    MIX_BY_GPUS,
    RISING_LOAD,
    ElvingerCell,
    cells,
    router_params,
    v100_profiles,
)
from research.experiments.elvinger.latencies import ShownModel, draw_stages, stages_table
from research.experiments.elvinger.plots import GoodputPoint, draw_goodput
from research.experiments.elvinger.simulated import PlacedLoad, ServedLoad, simulate
from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import parallel_map

_COMPARED: Final = tuple(name for name in planner_names() if name != "igniter")
_OURS: Final = "predicted-goodput"
_TEXT_BATCH: Final = 64
"""Batch of efficientnet_b7 that the text gives by hand (section 6.2.1)."""
_GPU_FIGURES: Final = ("6.1", "6.10", "A.1", "A.2")
_DENSENET: Final = ("densenet121",)
_MOST_GPUS: Final = 100
"""A larger x is a load."""


@dataclass(frozen=True, slots=True)
class SimulatedTask:
    planner: str
    cell: ElvingerCell
    file: Path
    seed: int
    batch_of: tuple[str, int] | None = None
    """A model whose replicas get this batch by hand."""
    shown: tuple[str, ...] = ()
    """Models the stages of whose requests are kept."""
    figure: str = ""
    """That shows these stages."""


@dataclass(frozen=True, slots=True)
class SimulatedPlan:
    """Goodput of one plan in one cell, in req/s."""

    task: SimulatedTask
    served: dict[str, ServedLoad]
    predicted_rps: float

    @property
    def goodput_rps(self) -> float:
        return sum(each.goodput_rps for each in self.served.values())


def simulate_plan(task: SimulatedTask) -> SimulatedPlan:
    """Plan and simulate one cell."""
    cell, profiles = task.cell, v100_profiles(task.file)
    params = router_params(cell)
    placement = planner_of(task.planner)(
        cell.workloads(), cell.accelerators(), profiles, (), params
    )
    kinds = {each.name: each.kind for each in cell.accelerators()}
    replicas = _by_hand(placement, task.batch_of)
    in_time = Predictor(cell.workloads(), kinds, profiles, params).in_time(replicas)
    load = PlacedLoad(replicas, tuple(cell.workloads()), kinds, params)
    return SimulatedPlan(
        task,
        simulate(load, profiles, task.seed, task.shown),
        sum(rate * in_time[model] for model, rate in cell.rates_rps),
    )


def _by_hand(placement: Placement, batch_of: tuple[str, int] | None) -> tuple[PlacedReplica, ...]:
    if batch_of is None:
        return placement.replicas
    model, batch_size = batch_of
    return tuple(
        replace(each, batch_size=batch_size) if each.model == model else each
        for each in placement.replicas
    )


def run(settings: Settings, *, is_load: bool) -> Result:
    """Simulated goodput of all planners over GPUs, or over the load."""
    v100_profiles(settings.file(FILE))
    file = settings.file(FILE)
    assert file is not None
    chosen = [
        cell
        for cell in cells(is_quick=False)
        if (cell.figure in _GPU_FIGURES) is not is_load and _is_chosen(cell, settings)
    ]
    seed = settings.seeds[0] if settings.seeds else 1
    tasks = [SimulatedTask(name, cell, file, seed) for cell in chosen for name in _COMPARED]
    stated = _stated(file, seed, is_load=is_load)
    found = parallel_map(simulate_plan, [*tasks, *stated], settings, what="cells x planners")
    compared, by_hand = found[: len(tasks)], found[len(tasks) :]
    last = _rising_table(by_hand[:3]) if is_load else _efficientnet_table(by_hand[:2])
    shown = _shown(by_hand)
    images: tuple[Path, ...] = ()
    if settings.out is not None:
        points = [
            GoodputPoint(each.task.cell, each.task.planner, each.goodput_rps, each.predicted_rps)
            for each in compared
        ]
        images = (*draw_goodput(points, _COMPARED, settings.out), draw_stages(shown, settings.out))
    tables = (_goodput_table(compared), _margins(compared), last, stages_table(shown))
    return Result(tables, _NOTES, images)


def _shown(found: list[SimulatedPlan]) -> list[ShownModel]:
    shown = []
    for each in found:
        task = each.task
        for model in task.shown:
            stages = each.served[model].stages
            if stages is not None:
                batch = f" x {task.batch_of[1]}" if task.batch_of else ""
                unit = "GPUs" if task.cell.x < _MOST_GPUS else "req/s"
                plan = f"{task.planner}{batch}, {task.cell.x:g} {unit}"
                shown.append(ShownModel(task.figure, plan, model, stages, task.cell.slo_s))
    return shown


def _is_chosen(cell: ElvingerCell, settings: Settings) -> bool:
    if not settings.is_quick:
        return True
    is_small = cell.figure in {"6.1", "6.10"} and cell.x in {2, 4}
    return is_small or (cell.x == 3000 and "250" in cell.figure)


def _stated(file: Path, seed: int, *, is_load: bool) -> list[SimulatedTask]:
    """Plans of which the text tells latencies; those of the last table come first."""
    if is_load:
        rising = [
            SimulatedTask("wsm-milp", cell, file, seed, None, _DENSENET, "6.17")
            for cell in RISING_LOAD
        ]
        full = [
            SimulatedTask("ao-milp", cell, file, seed, None, _DENSENET, "6.19")
            for cell in (RISING_LOAD[0], RISING_LOAD[-1])
        ]
        return [*rising, *full]
    by_hand = ("efficientnet_b7", _TEXT_BATCH)
    return [
        SimulatedTask("usher", EFFICIENTNET, file, seed, None, by_hand[:1], "6.6"),
        SimulatedTask("usher", EFFICIENTNET, file, seed, by_hand, by_hand[:1], "6.6"),
        *(
            SimulatedTask("wsm-milp", cell, file, seed, None, ("bert", "gpt2"), "6.13")
            for cell in MIX_BY_GPUS
        ),
    ]


def _goodput_table(found: list[SimulatedPlan]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    by_cell: dict[ElvingerCell, dict[str, SimulatedPlan]] = {}
    for each in found:
        by_cell.setdefault(each.task.cell, {})[each.task.planner] = each
    for cell, mine in by_cell.items():
        goodput = [round(mine[name].goodput_rps, 1) for name in _COMPARED]
        rows.append((cell.figure, cell.x, cell.total_rps, *goodput))
    return Table(
        "Simulated goodput, in req/s", ("figure", "GPUs or req/s", "load", *_COMPARED), tuple(rows)
    )


def _margins(found: list[SimulatedPlan]) -> Table:
    """Ours against the best of the others, and predictions against simulations, by figure."""
    rows: list[tuple[Cell, ...]] = []
    for figure in dict.fromkeys(each.task.cell.figure for each in found):
        mine = [each for each in found if each.task.cell.figure == figure]
        worst, short = 0.0, []
        for cell in dict.fromkeys(each.task.cell for each in mine):
            ours = next(e for e in mine if e.task.cell == cell and e.task.planner == _OURS)
            best = max(
                each.goodput_rps
                for each in mine
                if each.task.cell == cell and each.task.planner != _OURS
            )
            ratio = ours.goodput_rps / best - 1 if best else 0.0
            worst = min(worst, ratio)
            if best < 0.9 * cell.total_rps:
                short.append(ratio)
        error = fmean(
            abs(each.predicted_rps - each.goodput_rps) / each.task.cell.total_rps for each in mine
        )
        rows.append(
            (
                figure,
                round(100 * worst, 1),
                round(100 * fmean(short), 1) if short else None,
                len(short),
                round(100 * error, 1),
            )
        )
    return Table(
        "predicted-goodput against the best other planner, in %",
        (
            "figure",
            "worst cell",
            "mean where the best misses over 10 % of the load",
            "such cells",
            "mean error of prediction, % of load",
        ),
        tuple(rows),
    )


def _efficientnet_table(found: list[SimulatedPlan]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, each in zip(("usher, 2 x 8", "by hand, 2 x 64"), found, strict=True):
        served = each.served["efficientnet_b7"]
        rows.append((name, round(served.throughput_rps, 2), round(served.goodput_rps, 2)))
    return Table(
        "Section 6.2.1: efficientnet_b7 at 500 req/s within 200 ms on 6 GPUs, simulated; the "
        "thesis measured a goodput of 360.61 and 143.73 at equal throughput",
        ("plan", "throughput, req/s", "goodput, req/s"),
        tuple(rows),
    )


def _rising_table(found: list[SimulatedPlan]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (each.task.cell.total_rps, round(each.goodput_rps, 1)) for each in found
    ]
    return Table(
        "Section 6.3: wsm-milp on 4 GPUs within 250 ms, simulated; in the thesis goodput falls "
        "from 3,000 to 4,000 req/s, then rises",
        ("load, req/s", "goodput, req/s"),
        tuple(rows),
    )


_NOTES: Final = (
    "everything here is simulated: 8 s of Poisson load after 2 s of warm-up on profiled times, one "
    "router (batch-round-robin), late requests served",
    "interference: while batches on one GPU use more than 100 % of its multiprocessors together, "
    "all are slower in proportion; the planners' own formulas are not used. The slowdown by a "
    "share is the planners' estimate, since only two values of it are published",
    f"profiles: Elvinger 2024, table A.1 ({FILE}), without uncertain rows; iGniter's coefficients "
    "for PyTorch are unpublished, so its bars are left out",
)
GPUS: Final = Experiment(
    "elvinger-gpus",
    "Elvinger 2024, figures 6.1, 6.10, A.1, A.2: simulated goodput over GPUs",
    partial(run, is_load=False),
)
LOAD: Final = Experiment(
    "elvinger-load",
    "Elvinger 2024, figures 6.15 and A.3: simulated goodput over the load",
    partial(run, is_load=True),
)
