"""The experiment elvinger-plans: plans of all planners on V100, after Elvinger 2024.

Goodput is expected, by each planner's own rules, and predicted, by one model of interference,
queueing and batch building for all plans. Nothing is measured.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autoscaler.placement import planner_names, planner_of
from autoscaler.placement.plan import Placement
from autoscaler.placement.prediction import Predictor
from autoscaler.placement.problem import Profiles
from research.experiments.elvinger.cells import (
    FILE,
    STATED,
    ElvingerCell,
    cells,
    router_params,
    v100_profiles,
)
from research.experiments.elvinger.plots import GoodputPoint, draw_goodput, draw_plans
from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import parallel_map
from research.placement.fleet import used_by

_COMPARED: Final = tuple(name for name in planner_names() if name != "igniter")
_WITHIN_RPS: Final = 0.01


@dataclass(frozen=True, slots=True)
class PlanTask:
    planner: str
    cell: ElvingerCell
    file: Path


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A plan's goodput, in req/s."""

    planner: str
    cell: ElvingerCell
    expected_rps: float
    """By the planner's own rules."""
    predicted_rps: float
    """With interference, queueing and batch building, for every planner alike."""
    gpus: int
    replicas: int


def plan_cell(task: PlanTask) -> PlannedCell:
    profiles = v100_profiles(task.file)
    placement = _placed(task.planner, task.cell, profiles)
    return PlannedCell(
        task.planner,
        task.cell,
        placement.total_rps,
        predicted_rps(placement, task.cell, profiles),
        len(used_by(placement)),
        len(placement.replicas),
    )


def _placed(planner: str, cell: ElvingerCell, profiles: Profiles) -> Placement:
    params = router_params(cell)
    return planner_of(planner)(cell.workloads(), cell.accelerators(), profiles, (), params)


def predicted_rps(placement: Placement, cell: ElvingerCell, profiles: Profiles) -> float:
    kinds = {each.name: each.kind for each in cell.accelerators()}
    params = router_params(cell)
    predictor = Predictor(cell.workloads(), kinds, profiles, params)
    in_time = predictor.in_time(placement.replicas)
    return sum(rate * in_time[model] for model, rate in cell.rates_rps)


def run(settings: Settings) -> Result:
    """Stated plans, and the goodput of all planners in the cells of the figures."""
    file = settings.file(FILE)
    profiles = v100_profiles(file)
    assert file is not None
    tasks = [
        PlanTask(name, cell, file)
        for cell in cells(is_quick=settings.is_quick)
        for name in _COMPARED
    ]
    found = parallel_map(plan_cell, tasks, settings, what="cells x planners")
    images: tuple[Path, ...] = ()
    if settings.out is not None:
        stated = [(each, _placed(each.planner, each.cell, profiles)) for each in STATED]
        images = (
            draw_plans(stated, profiles, settings.out),
            *draw_goodput(
                [
                    GoodputPoint(each.cell, each.planner, each.predicted_rps, each.expected_rps)
                    for each in found
                ],
                _COMPARED,
                settings.out,
            ),
        )
    return Result((_stated_table(profiles), *_goodput_tables(found)), _NOTES, images)


def _stated_table(profiles: Profiles) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for each in STATED:
        found = _placed(each.planner, each.cell, profiles)
        is_same = abs(found.total_rps - each.goodput_rps) <= _WITHIN_RPS
        rows.append(
            (
                each.where,
                each.planner,
                each.goodput_rps,
                round(found.total_rps, 2),
                len(used_by(found)),
                "yes" if is_same else "no",
            )
        )
    return Table(
        "Expected goodput that the thesis states, in req/s",
        ("where", "planner", "stated", "planned", "GPUs in use", "equal"),
        tuple(rows),
    )


def _goodput_tables(found: list[PlannedCell]) -> list[Table]:
    tables = []
    by_cell: dict[ElvingerCell, dict[str, PlannedCell]] = {}
    for each in found:
        by_cell.setdefault(each.cell, {})[each.planner] = each
    for title, value in (
        ("Expected goodput by the planner's own rules, in req/s", "expected_rps"),
        (
            "Predicted goodput of the same plans with interference, queueing and batch building, "
            "in req/s",
            "predicted_rps",
        ),
    ):
        rows = [
            (
                cell.figure,
                cell.x,
                cell.total_rps,
                *(round(getattr(mine[name], value), 1) for name in _COMPARED),
            )
            for cell, mine in by_cell.items()
        ]
        tables.append(Table(title, ("figure", "GPUs or req/s", "load", *_COMPARED), tuple(rows)))
    return tables


_NOTES: Final = (
    "nothing here is measured or simulated: goodput is what plans promise by their own rules, and "
    "what one analytical model predicts for all of them (the planner predicted-goodput maximises "
    "that model, so the second table shows its search, not its truth)",
    f"profiles: Elvinger 2024, table A.1 ({FILE}), without uncertain rows; iGniter's coefficients "
    "for PyTorch are unpublished, so its bars are left out",
)
EXPERIMENT: Final = Experiment(
    "elvinger-plans", "Elvinger 2024, chapters 5-6: plans of all planners on V100", run
)
