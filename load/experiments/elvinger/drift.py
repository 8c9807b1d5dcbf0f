"""The experiment placement-drift: one day of changing rates, planned anew when it pays.

Rates: a day of Huawei's five regions (Joosen et al. 2025) as five models, scaled to the GPUs. Every
twenty minutes `should_replan` and `should_adopt` decide as the live autoscaler does; beside it, a
plan at every tick, and the first plan kept. Goodput is predicted by one model for all; nothing is
simulated or measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.placement.planners.adoption import PlanningJob, plan_and_compare, predicted_rps
from autoscaler.placement.planners.fewest import accelerators_of
from autoscaler.placement.planners.problem import PlanParams, Workload
from autoscaler.placement.planners.replanning import (
    Observation,
    moves,
    planned_for,
    should_adopt,
    should_replan,
)
from load.experiments.elvinger.cells import FILE, KIND, VISION, v100_profiles
from load.experiments.harness.experiment import Experiment, Result, Table
from load.experiments.harness.parallel_map import parallel_map
from load.trace_spec.trace_spec import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from load.experiments.harness.experiment import Cell, Settings
    from registry.domain.placement import PlacedReplica

_TRACE_FILE: Final = "huawei_cold_starts_per_minute.csv.gz"
_GPUS: Final = 4
_SLO_S: Final = 0.2
_TICK_S: Final = 1200.0
_PEAK_RPS: Final = 3000.0
"""All models together at the busiest tick: more than four GPUs serve."""
_LOAD_S: Final = 5.0
"""Time of a load, in which a GPU's models are slow: as `moving_cost` of the live autoscaler."""
_PLANNER: Final = "predicted-goodput"
_EVALUATIONS: Final = 500
_WAYS: Final = ("when it pays", "every tick", "never")


@dataclass(frozen=True, slots=True)
class DriftTask:
    way: str
    rates_rps: tuple[tuple[float, ...], ...]
    """By tick, then model."""
    file: Path


@dataclass(frozen=True, slots=True)
class DriftRun:
    way: str
    goodput_rps: float
    """Mean over the ticks, predicted."""
    moves: int
    plans: int


def run_day(task: DriftTask) -> DriftRun:
    """All ticks of a day."""
    profiles, gpus = v100_profiles(task.file), tuple(accelerators_of(KIND, _GPUS))
    current: tuple[PlacedReplica, ...] = ()
    known, moved, plans, goodput = None, 0, 0, 0.0
    for at, rates in enumerate(task.rates_rps):
        loads = tuple(
            Workload(model, rate, _SLO_S) for model, rate in zip(VISION, rates, strict=True)
        )
        job = PlanningJob(
            _PLANNER, loads, gpus, profiles, current, PlanParams(max_evaluations=_EVALUATIONS)
        )
        # A tick of twenty minutes holds many checks: a rate that is off stays off.
        is_due = known is None or task.way == "every tick"
        if known is not None and task.way == "when it pays":
            for check in range(2):
                seen = Observation(at * _TICK_S + check, loads, gpus, {})
                known, reason = should_replan(known, seen)
                is_due = bool(reason)
        if is_due:
            plans += 1
            result = plan_and_compare(job)
            steps = moves(current, result.placement.replicas, gpus, profiles, {})
            starts = [each for step in steps for each in step if each.starts is not None]
            cost = _LOAD_S * sum(_rate_at(each.accelerator, current) for each in starts)
            known = planned_for(loads, gpus)
            if task.way == "every tick" or not current or should_adopt(result.gain_rps, cost):
                moved += len(starts) if current else 0
                current = result.placement.replicas
        goodput += predicted_rps(
            PlanningJob(_PLANNER, loads, gpus, profiles, (), job.params), current
        )
    return DriftRun(task.way, goodput / len(task.rates_rps), moved, plans)


def _rate_at(accelerator: str, replicas: tuple[PlacedReplica, ...]) -> float:
    return sum(each.rate_rps for each in replicas if each.accelerator == accelerator)


def day_rates(data: Path) -> tuple[tuple[float, ...], ...]:
    """Requests per second of each model in each tick, scaled to the peak."""
    trace = open_trace(f"huawei:'{data}'|slice=24h:48h", seed=1)
    counts: dict[str, NDArray[np.int64]] = {}
    ticks = int(86_400 / _TICK_S)
    for batch in trace:
        at = np.minimum(batch.column("at_s").to_numpy() // _TICK_S, ticks - 1).astype(int)
        models = np.asarray(batch.column("model").to_pylist())
        for model in np.unique(models):
            found = np.bincount(at[models == model], minlength=ticks)
            counts[model] = counts.get(model, np.zeros(ticks, dtype=np.int64)) + found
    busiest = sorted(counts, key=lambda model: (-counts[model].sum(), model))[: len(VISION)]
    rates = np.array([counts[model] for model in busiest], dtype=float).T
    rates *= _PEAK_RPS / rates.sum(axis=1).max()
    return tuple(tuple(row.tolist()) for row in rates)


def run(settings: Settings) -> Result:
    """The day in three ways, and an hour of constant rates."""
    v100_profiles(settings.file(FILE))
    file, trace = settings.required_file(FILE), settings.required_file(_TRACE_FILE)
    rates = day_rates(trace)
    if settings.is_quick:
        rates = rates[:12]
    constant = (tuple(np.mean(rates, axis=0).tolist()),) * 12
    tasks = [DriftTask(way, rates, file) for way in _WAYS]
    tasks.append(DriftTask(_WAYS[0], constant, file))
    found = parallel_map(run_day, tasks, settings, what="ways to plan")
    every = next(each for each in found if each.way == "every tick")
    rows: list[tuple[Cell, ...]] = []
    names = [*_WAYS, f"{_WAYS[0]}, constant rates"]
    for name, each in zip(names, found, strict=True):
        ratio = None if each is found[-1] else round(100 * each.goodput_rps / every.goodput_rps, 1)
        rows.append((name, round(each.goodput_rps, 1), ratio, each.moves, each.plans))
    table = Table(
        f"{len(rates)} ticks of twenty minutes on {_GPUS} V100, predicted",
        ("planned anew", "goodput, req/s", "of every tick, %", "copies moved", "plans"),
        tuple(rows),
    )
    return Result((table,), _NOTES)


_NOTES: Final = (
    "goodput is predicted, by the model that the planner maximises; nothing is simulated or "
    "measured. Rates are those of the tick itself: forecasts are left out",
    f"rates: the five busiest of Huawei's regions on day 1 ({_TRACE_FILE}) as {', '.join(VISION)}, "
    f"scaled to {_PEAK_RPS:g} req/s at the peak, {_SLO_S * 1000:g} ms",
)
EXPERIMENT: Final = Experiment(
    "placement-drift", "a day of changing rates: goodput and moves by when plans are made", run
)
