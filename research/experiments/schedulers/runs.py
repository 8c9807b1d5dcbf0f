"""One simulated run: a scheduler on the workload of a seed.

The machines are equal and serve one request at a time. What one of them does over time (figures 6.3
and 6.12 of Blinowski et al. 2024): loads are read from the registry, so that those of the scheduler
are included, which no request waits for.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from load.simulator.autoscaling import PlannedAutoscaler
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from registry.domain.model import (
    ModelName,
    ModelPolicy,
    ModelSpec,
    RoutingPolicy,
    Tier,
    name_of_key,
)
from registry.domain.pod import ProfilePoint
from research.experiments.schedulers.scheduler_configs import scheduler_config
from research.experiments.schedulers.setting import MAIN, Setting
from research.experiments.schedulers.usage_plot import PodUsage, TimeSpans, union
from research.experiments.schedulers.workload import BIN_S, MODELS, Workload, deadlines_s

_MODEL_BYTES: Final = 10**6
"""Every model takes as much, so that a machine's budget holds a number of models (6.1)."""
_QUEUE_TIMEOUT_S: Final = 3600.0
"""No request is rejected: late requests are served late."""
_CURVE_POINTS: Final = 400
_BACKLOG_MINUTES: Final = 2
"""Minutes after a spike in which requests do not count as steady, because a backlog remains."""


@dataclass(frozen=True, slots=True)
class SchedulerTask:
    scheduler: str
    seed: int
    workload: Workload
    setting: Setting = MAIN
    machine: str = ""
    """The machine whose use over time is recorded; empty: none."""


@dataclass(frozen=True, slots=True)
class SchedulerResult:
    """Times in seconds; shares of all requests unless a field says otherwise."""

    scheduler: str
    seed: int
    requests: int
    unanswered: int
    missed: float
    """Share without a response by the deadline."""
    missed_steady: float
    missed_in_spikes: float
    late_s: float
    """Mean lateness of the responses that missed their deadline."""
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
    """CPU time of this process for the run."""
    curve_s: tuple[float, ...]
    """Completion times at even shares, from the shortest to the longest."""
    arrivals: tuple[int, ...]
    """Requests by minute."""
    misses: tuple[int, ...]
    """Missed deadlines by minute of arrival."""
    setting: str
    wait_s: float
    """Mean time from arrival until a machine was chosen: the thesis's latency (5.3)."""
    p99_wait_s: float
    answered: tuple[int, ...]
    """Responses by minute, until arrivals end."""
    usage: tuple[PodUsage, ...] = ()
    """Of the recorded machine, by model."""

    @property
    def per_minute(self) -> float:
        """Throughput, as in the thesis's section 5.3, until arrivals end."""
        return sum(self.answered) / len(self.answered)


def simulate(task: SchedulerTask) -> SchedulerResult:
    began_s = time.process_time()
    setting = task.setting
    config = scheduler_config(task.scheduler, setting)
    workload = setting.workload(task.workload)
    plan = cluster(setting, task.seed)
    scaler = PlannedAutoscaler(config.policy, plan, every_s=config.every_s)
    run = Simulation(
        plan, workload.trace(task.seed), seed=task.seed, autoscaler=scaler, queueing=config.queueing
    )
    run.set_measured_times(profiled_s(plan))
    log = ResidencyLog(task.machine)
    if task.machine:
        run.registry.models.on_residency = log.add
    rows = pa.Table.from_batches(list(run))
    arrived_s, due_s = (rows[each].to_numpy() for each in ("scheduled_s", "deadline_s"))
    took_s = rows["finished_s"].to_numpy() - arrived_s
    is_ok = rows["status"].to_numpy() == 200
    is_missed = ~is_ok | (took_s > due_s)
    minute = np.minimum((arrived_s // BIN_S).astype(int), workload.minutes - 1)
    spikes = workload.spike_minutes(task.seed)
    in_spike = _is_in_spike(minute, spikes)
    in_backlog = _is_in_spike(minute, spikes, more_minutes=_BACKLOG_MINUTES)
    ok_s = took_s[is_ok]
    wait_s = rows["queue_ms"].to_numpy() / 1000
    end_minute = (rows["finished_s"].to_numpy()[is_ok] // BIN_S).astype(int)
    answered = np.bincount(end_minute, minlength=workload.minutes)[: workload.minutes]
    p40, p50, p99 = np.quantile(ok_s, (0.4, 0.5, 0.99)).tolist()
    return SchedulerResult(
        scheduler=task.scheduler,
        seed=task.seed,
        requests=len(took_s),
        unanswered=int((~is_ok).sum()),
        missed=_share(is_missed),
        missed_steady=_share(is_missed[~in_backlog]),
        missed_in_spikes=_share(is_missed[in_spike]),
        late_s=float((took_s - due_s)[is_missed & is_ok].mean()) if is_missed.any() else 0.0,
        mean_s=float(ok_s.mean()),
        p40_s=p40,
        p50_s=p50,
        p99_s=p99,
        longest_s=float(ok_s.max()),
        within_30s=_share(is_ok & (took_s <= 30)),
        from_2_to_10s=_share(is_ok & (took_s >= 2) & (took_s <= 10)),
        loads=run.summary.loads.total(),
        load_s=run.summary.load_s,
        cpu_s=time.process_time() - began_s,
        curve_s=tuple(np.quantile(ok_s, np.linspace(0, 1, _CURVE_POINTS)).tolist()),
        arrivals=tuple(np.bincount(minute, minlength=workload.minutes).tolist()),
        misses=tuple(np.bincount(minute[is_missed], minlength=workload.minutes).tolist()),
        setting=setting.label,
        wait_s=float(wait_s.mean()),
        p99_wait_s=float(np.quantile(wait_s, 0.99)),
        answered=tuple(answered.tolist()),
        usage=tuple(log.usages(rows, run.events.now_s)) if task.machine else (),
    )


def profiled_s(plan: ClusterPlan) -> dict[str, dict[str, float]]:
    """Times of the models by key and measure, known to schedulers from the start of a run."""
    return {
        each.spec.key: {
            "infer": each.infer_s(1),
            "share": each.infer_s(1),
            **{f"load:{tier}": seconds for tier, seconds in each.load_s.items()},
        }
        for each in plan.models
    }


def cluster(setting: Setting, seed: int) -> ClusterPlan:
    """The machines, and the nine models with the deadlines of this seed."""
    deadline_s = deadlines_s(seed)
    memory_bytes = setting.models_each * _MODEL_BYTES
    return ClusterPlan(
        nodes=tuple(
            NodePlan(name, (PodPlan(name, slots=1, memory_bytes=memory_bytes),))
            for name in (f"machine-{number:02}" for number in range(setting.machines))
        ),
        models=tuple(
            ModelPlan(
                ModelSpec(
                    ModelName("default", each.name),
                    f"s3://models/{each.name}",
                    policy=ModelPolicy(
                        routing=RoutingPolicy.COLOCATION_QUEUEING,
                        deadline_s=deadline_s[each.name],
                        queue_depth=10**6,
                        queue_timeout_s=_QUEUE_TIMEOUT_S,
                    ),
                ),
                size_bytes=_MODEL_BYTES,
                memory_bytes=_MODEL_BYTES,
                infer=(ProfilePoint(1, each.infer_s),),
                preprocess_s=0.0,
                postprocess_s=0.0,
                assets_s=0.0,
                load_s=dict.fromkeys((Tier.REMOTE, Tier.DISK, Tier.HOST), each.load_s),
                is_batched=False,
            )
            for each in MODELS
        ),
    )


def _share(where: NDArray[np.bool_]) -> float:
    return float(where.mean()) if len(where) else 0.0


def _is_in_spike(
    minute: NDArray[np.int64], spikes: Sequence[tuple[int, int]], *, more_minutes: int = 0
) -> NDArray[np.bool_]:
    found = np.zeros(len(minute), dtype=bool)
    for first, end in spikes:
        found |= (minute >= first) & (minute < end + more_minutes)
    return found


class ResidencyLog:
    """When each model was loading and loaded on one pod."""

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._changes: dict[str, list[tuple[float, bool, bool]]] = {}
        """By key: time, whether it is loading, whether it is loaded."""

    def add(self, pod: str, key: str, tier: Tier, loading: Tier | None, now_s: float) -> None:
        if pod == self._pod:
            change = now_s, loading is not None, tier is Tier.DEVICE
            self._changes.setdefault(key, []).append(change)

    def usages(self, rows: pa.Table, end_s: float) -> list[PodUsage]:
        """By model; `rows` are the run's records."""
        of_pod = rows.filter(np.array(rows["predict_pod"].to_pylist()) == self._pod)
        models = np.array(of_pod["model"].to_pylist())
        # A request holds its machine from its dispatch to its response.
        begins = of_pod["scheduled_s"].to_numpy() + of_pod["queue_ms"].to_numpy() / 1000
        ends = of_pod["finished_s"].to_numpy()
        found = []
        for key, changes in sorted(self._changes.items()):
            name = name_of_key(key).name
            is_model = models == name
            loading = [(time_s, is_on) for time_s, is_on, _ in changes]
            loaded = [(time_s, is_on) for time_s, _, is_on in changes]
            found.append(
                PodUsage(
                    self._pod,
                    name,
                    loading=_spans(loading, end_s),
                    inferring=union(begins[is_model], ends[is_model]),
                    loaded=_spans(loaded, end_s),
                )
            )
        return found


def _spans(changes: list[tuple[float, bool]], end_s: float) -> TimeSpans:
    begins: list[float] = []
    ends: list[float] = []
    for time_s, is_on in changes:
        is_open = len(begins) > len(ends)
        if is_on and not is_open:
            begins.append(time_s)
        elif is_open and not is_on:
            ends.append(time_s)
    if len(begins) > len(ends):
        ends.append(end_s)
    return TimeSpans(np.array(begins), np.array(ends))
