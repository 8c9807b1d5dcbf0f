"""The experiment placement-drift: one day of changing rates, planned anew when it pays.

Rates: a day of Huawei's five regions (Joosen et al. 2025) as five models, scaled to the GPUs. Every
twenty minutes `should_replan` and `should_adopt` decide as the live autoscaler does; beside it, a
plan at every tick, and the first plan kept. Goodput is predicted by one model for all; nothing is
simulated or measured.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoscaler.place import plan_and_compare, predicted_rps
from autoscaler.placement.placed_pods import moves, planned_for, should_adopt, should_replan
from autoscaler.placement.placement_input import PlacementInput
from autoscaler.placement.problem import PlanParams, Workload
from load.trace_spec import open_trace
from registry.domain.records import PlacedReplica
from research.experiments.elvinger.cells import FILE, KIND, VISION, v100_profiles
from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import parallel_map
from research.placement.fleet import accelerators_of

_TRACE_FILE: Final = "huawei_cold_starts_per_minute.csv.gz"
_GPUS: Final = 4
_SLO_S: Final = 0.2
_TICK_S: Final = 1200.0
_PEAK_RPS: Final = 3000.0
"""All models together at the busiest tick."""
_LOAD_S: Final = 5.0
"""Time of a load, in which a GPU's models are slow: as `moving_cost` of the live autoscaler."""
_PLANNER: Final = "predicted-goodput"
_PARAMS: Final = PlanParams(max_evaluations=500)
_DAYS: Final = ("as traced", "each region shifted")
_WAYS: Final = ("when it pays", "every tick", "never")


@dataclass(frozen=True, slots=True)
class DriftTask:
    way: str
    rates_rps: tuple[tuple[float, ...], ...]
    """By tick, then model."""
    file: Path
    models: tuple[str, ...] = VISION
    gpus: int = _GPUS


@dataclass(frozen=True, slots=True)
class DriftRun:
    way: str
    goodput_rps: float
    """Mean over the ticks, predicted."""
    moves: int
    plans: int


def run_day(task: DriftTask) -> DriftRun:
    """All ticks of a day."""
    profiles, gpus = v100_profiles(task.file), tuple(accelerators_of(KIND, task.gpus))
    current: tuple[PlacedReplica, ...] = ()
    known, moved, plans, goodput = None, 0, 0, 0.0
    for at, rates in enumerate(task.rates_rps):
        loads = tuple(
            Workload(model, rate, _SLO_S) for model, rate in zip(task.models, rates, strict=True)
        )
        inputs = PlacementInput(loads, gpus, profiles)
        # A tick of twenty minutes holds many checks: a rate that is off stays off.
        is_due = known is None or task.way == "every tick"
        if known is not None and task.way == "when it pays":
            for check in range(2):
                known, reason = should_replan(known, inputs, {}, at * _TICK_S + check)
                is_due = bool(reason)
        if is_due:
            plans += 1
            placement, gain_rps = plan_and_compare(_PLANNER, inputs, current, _PARAMS)
            queues = moves(current, placement.replicas, gpus, profiles, {}).values()
            starts = [each.starts for queue in queues for each in queue if each.starts is not None]
            cost = _LOAD_S * sum(_rate_at(each.accelerator, current) for each in starts)
            known = planned_for(inputs)
            if task.way == "every tick" or not current or should_adopt(gain_rps, cost):
                moved += len(starts) if current else 0
                current = placement.replicas
        goodput += predicted_rps(inputs, current, _PARAMS)
    return DriftRun(task.way, goodput / len(task.rates_rps), moved, plans)


def _rate_at(accelerator: str, replicas: tuple[PlacedReplica, ...]) -> float:
    return sum(each.rate_rps for each in replicas if each.accelerator == accelerator)


def day_rates(data: Path, *, is_shifted: bool = False) -> tuple[tuple[float, ...], ...]:
    """Requests per second of each model in each tick, scaled to the peak.

    `is_shifted`: each region's day begins at another hour, evenly over the day, as if the regions
    were around the world. Without it they rise and fall together, and the mix hardly changes.
    """
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
    if is_shifted:
        later = [at * ticks // len(busiest) for at in range(len(busiest))]
        rates = np.column_stack(
            [np.roll(column, by) for column, by in zip(rates.T, later, strict=True)]
        )
    rates *= _PEAK_RPS / rates.sum(axis=1).max()
    return tuple(tuple(row.tolist()) for row in rates)


def run(settings: Settings) -> Result:
    """Two days in three ways, and an hour of constant rates."""
    v100_profiles(settings.file(FILE))
    file, trace = settings.required_file(FILE), settings.required_file(_TRACE_FILE)
    days = [day_rates(trace, is_shifted=is_shifted) for is_shifted in (False, True)]
    if settings.is_quick:
        days = [rates[:12] for rates in days]
    tasks = [DriftTask(way, rates, file) for rates in days for way in _WAYS]
    constant = (tuple(np.mean(days[0], axis=0).tolist()),) * 12
    tasks.append(DriftTask(_WAYS[0], constant, file))
    *found, steady = parallel_map(run_day, tasks, settings, what="ways to plan")
    rows: list[tuple[Cell, ...]] = []
    for at, name in enumerate(_DAYS):
        mine = found[at * len(_WAYS) : (at + 1) * len(_WAYS)]
        every = next(each for each in mine if each.way == "every tick")
        for each in mine:
            ratio = round(100 * each.goodput_rps / every.goodput_rps, 1)
            rows.append((name, each.way, round(each.goodput_rps, 1), ratio, each.moves, each.plans))
    rows.append(
        (
            "constant rates",
            steady.way,
            round(steady.goodput_rps, 1),
            None,
            steady.moves,
            steady.plans,
        )
    )
    table = Table(
        f"{len(days[0])} ticks of twenty minutes on {_GPUS} V100, predicted",
        ("day", "planned anew", "goodput, req/s", "of every tick, %", "copies moved", "plans"),
        tuple(rows),
    )
    return Result((table,), _NOTES)


_NOTES: Final = (
    "goodput is predicted, by the model that the planner maximises; nothing is simulated or "
    "measured. Rates are those of the tick itself: forecasts are left out",
    f"rates: the five busiest of Huawei's regions on day 1 ({_TRACE_FILE}) as {', '.join(VISION)}, "
    f"scaled to {_PEAK_RPS:g} req/s at the peak, {_SLO_S * 1000:g} ms. Shifted: the regions' days "
    "begin evenly spread over 24 h, so that the mix changes; this is not in the trace",
)
EXPERIMENT: Final = Experiment(
    "placement-drift", "a day of changing rates: goodput and moves by when plans are made", run
)
