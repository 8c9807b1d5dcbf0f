"""One run: a scheduler on the workload of a seed, and what it came to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from load.experiments.schedulers.machines import cluster, profiled_s
from load.experiments.schedulers.scheduler_configs import scheduler_config
from load.experiments.schedulers.workload import BIN_S
from load.simulator.autoscaling import PacedForecasts, PlannedAutoscaler
from load.simulator.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from load.experiments.schedulers.workload import Workload

_CURVE: Final = 400
_AFTER_SPIKE: Final = 2
"""Minutes after a spike in which its backlog may last: not steady."""


@dataclass(frozen=True, slots=True)
class SchedulerTask:
    """What one process is given."""

    scheduler: str
    seed: int
    machines: int
    workload: Workload


@dataclass(frozen=True, slots=True)
class SchedulerResult:
    """What one run came to. Times in seconds, shares of all requests."""

    scheduler: str
    seed: int
    requests: int
    unanswered: int
    missed: float
    """Share not answered by their deadline."""
    missed_steady: float
    missed_in_spikes: float
    late_s: float
    """How late those were that missed, on average."""
    mean_s: float
    p40_s: float
    p50_s: float
    p99_s: float
    longest_s: float
    within_30s: float
    from_2_to_10s: float
    loads: int
    load_s: float
    cpu_s: float
    """Of this process, for the run."""
    curve_s: tuple[float, ...]
    """Completion times at even shares, from the least to the longest."""
    arrivals: tuple[int, ...]
    """By minute."""
    misses: tuple[int, ...]
    """By minute of arrival."""


def run_one(task: SchedulerTask) -> SchedulerResult:
    """Simulate."""
    began_s = time.process_time()
    who, work = scheduler_config(task.scheduler), task.workload
    plan = cluster(task.machines, task.seed)
    scaler = PlannedAutoscaler(
        who.policy, plan,
        every_s=who.every_s, forecaster=PacedForecasts(), is_forecasting=who.is_forecasting,
    )  # fmt: skip
    simulation = Simulation(
        plan, work.trace(task.seed), seed=task.seed, autoscaler=scaler, queueing=who.queueing
    )
    simulation.set_measured_times(profiled_s(plan))
    rows = pa.Table.from_batches(list(simulation))
    came_s, due_s = (rows[each].to_numpy() for each in ("scheduled_s", "deadline_s"))
    took_s = rows["finished_s"].to_numpy() - came_s
    is_ok = rows["status"].to_numpy() == 200
    is_missed = ~is_ok | (took_s > due_s)
    minute = np.minimum((came_s // BIN_S).astype(int), work.minutes - 1)
    spikes = work.spike_minutes(task.seed)
    in_spike, after = _within(minute, spikes, 0), _within(minute, spikes, _AFTER_SPIKE)
    answered_s = took_s[is_ok]
    p40, p50, p99 = np.quantile(answered_s, (0.4, 0.5, 0.99)).tolist()
    return SchedulerResult(
        scheduler=task.scheduler,
        seed=task.seed,
        requests=len(took_s),
        unanswered=int((~is_ok).sum()),
        missed=_share(is_missed),
        missed_steady=_share(is_missed[~after]),
        missed_in_spikes=_share(is_missed[in_spike]),
        late_s=float((took_s - due_s)[is_missed & is_ok].mean()) if is_missed.any() else 0.0,
        mean_s=float(answered_s.mean()),
        p40_s=p40,
        p50_s=p50,
        p99_s=p99,
        longest_s=float(answered_s.max()),
        within_30s=_share(is_ok & (took_s <= 30)),
        from_2_to_10s=_share(is_ok & (took_s >= 2) & (took_s <= 10)),
        loads=simulation.summary.loads.total(),
        load_s=simulation.summary.load_s,
        cpu_s=time.process_time() - began_s,
        curve_s=tuple(np.quantile(answered_s, np.linspace(0, 1, _CURVE)).tolist()),
        arrivals=tuple(np.bincount(minute, minlength=work.minutes).tolist()),
        misses=tuple(np.bincount(minute[is_missed], minlength=work.minutes).tolist()),
    )


def _share(where: NDArray[np.bool_]) -> float:
    return float(where.mean()) if len(where) else 0.0


def _within(
    minute: NDArray[np.int64], spikes: Sequence[tuple[int, int]], longer: int
) -> NDArray[np.bool_]:
    found = np.zeros(len(minute), dtype=bool)
    for first, end in spikes:
        found |= (minute >= first) & (minute < end + longer)
    return found
