"""The runs of one policy in one cell, with one seed each."""

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from autoscaler.loading_policies.predictive import predictive
from load.report.run import Bools, Floats
from load.simulator.autoscaling import TICK_S, PlannedAutoscaler
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.trace_spec import open_trace
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import ProfilePoint
from research.experiments.regret.cells import RegretCell
from research.experiments.regret.twin import TwinRun
from research.experiments.schedulers.scheduler_configs import CLOCKWORK, scheduler_config

FIXED: Final = ("random", "least-loaded", "colocation", "colocation-queueing", "remote-proxy")
AUTO: Final = "auto"
PREDICTIVE: Final = "auto + predictive"
TWIN: Final = "twin"
"""`auto`, unless shadow runs find another policy better; runs where `--policy` names it."""
WITH_AUTOSCALER: Final = (PREDICTIVE, CLOCKWORK)
POLICIES: Final = (*FIXED, AUTO, *WITH_AUTOSCALER)
_BYTES: Final = 10**8
"""Size of a model of average size."""
_FIXED_SHARE: Final = 0.1
"""Part of a load's time that does not transfer bytes, where links are shared."""
_QUEUE_TIMEOUT_S: Final = 86_400.0
"""Requests are rejected for their deadline only."""


@dataclass(frozen=True, slots=True)
class RegretTask:
    policy: str
    cell: RegretCell
    seed: int


@dataclass(frozen=True, slots=True)
class RegretResult:
    """Latencies of one run's requests, in seconds.

    A request without a successful response counts with its deadline, or with the time until it was
    rejected if that is longer.
    """

    policy: str
    cell: int
    seed: int
    requests: int
    failed: int
    """Requests without a successful response."""
    missed: float
    """Share of requests without a successful response by the deadline."""
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    loads: int
    cpu_s: float
    """CPU time of this process for the run."""


def simulate(task: RegretTask) -> RegretResult:
    began_s = time.process_time()
    run = _run_of(task)
    latency_s, is_ok = _latencies(run)
    missed = ~is_ok
    if (deadline_s := task.cell.deadline_s) is not None:
        latency_s = np.where(is_ok, latency_s, np.maximum(latency_s, deadline_s))
        missed |= latency_s > deadline_s
    p50_s, p95_s, p99_s = np.quantile(latency_s, (0.5, 0.95, 0.99)).tolist()
    return RegretResult(
        task.policy,
        task.cell.number,
        task.seed,
        len(latency_s),
        int((~is_ok).sum()),
        float(missed.mean()),
        float(latency_s.mean()),
        p50_s,
        p95_s,
        p99_s,
        run.summary.loads_started.total(),
        time.process_time() - began_s,
    )


def _run_of(task: RegretTask) -> Simulation | TwinRun:
    cell = task.cell
    if task.policy != TWIN:
        return simulation_of(cell, task.policy, task.seed)
    return TwinRun(
        cluster(cell), open_trace(cell.trace, seed=task.seed), task.seed, cell.deadline_s
    )


def simulation_of(cell: RegretCell, policy: str, seed: int) -> Simulation:
    """A run of a policy from empty pods, without any measured time."""
    plan, trace = cluster(cell), open_trace(cell.trace, seed=seed)
    if policy == CLOCKWORK:
        config = scheduler_config(CLOCKWORK)
        run = Simulation(
            plan,
            trace,
            RoutingPolicy.COLOCATION_QUEUEING,
            seed,
            autoscaler=PlannedAutoscaler(config.policy, plan, every_s=config.every_s),
            queueing=config.queueing,
        )
        run.set_measured_times(_profiled_s(plan))  # Clockwork places by profiled times alone
        return run
    if policy == PREDICTIVE:
        scaler = PlannedAutoscaler(predictive(), plan, every_s=TICK_S)
        return Simulation(plan, trace, RoutingPolicy.AUTO, seed, autoscaler=scaler)
    return Simulation(plan, trace, policy, seed)


def cluster(cell: RegretCell) -> ClusterPlan:
    """A machine per pod."""
    rate = _BYTES / (cell.load_s * (1 - _FIXED_SHARE))
    nodes = tuple(
        NodePlan(
            f"pod-{number}",
            (
                PodPlan(
                    f"pod-{number}",
                    slots,
                    memory_bytes=round(places * _BYTES) + len(cell.sizes),
                    speed=speed,
                    device_bytes_per_s=100 * rate,
                ),
            ),
            object_storage_bytes_per_s=rate / cell.remote_factor,
            disk_bytes_per_s=rate,
        )
        for number, (slots, speed, places) in enumerate(
            zip(cell.slots, cell.speeds, cell.pod_memory, strict=True)
        )
    )
    models = tuple(_model(cell, number) for number in range(len(cell.sizes)))
    return ClusterPlan(nodes, models, pod_hop_s=cell.pod_hop_s)


def _model(cell: RegretCell, number: int) -> ModelPlan:
    policy = ModelPolicy(
        deadline_s=cell.deadline_s, queue_depth=10**6, queue_timeout_s=_QUEUE_TIMEOUT_S
    )
    size = cell.sizes[number]
    load_s = size * cell.load_s
    times_s = {Tier.REMOTE: cell.remote_factor * load_s, Tier.DISK: load_s, Tier.HOST: load_s}
    return ModelPlan(
        ModelSpec(ModelName("default", f"model-{number}"), f"s3://models/{number}", policy=policy),
        size_bytes=max(1, round(size * _BYTES)),
        memory_bytes=max(1, round(size * _BYTES)),
        infer=(
            ProfilePoint(1, cell.infer_s),
            ProfilePoint(8, cell.infer_s * (1 + 7 * cell.row_cost)),
        ),
        preprocess_s=cell.preprocess_s,
        postprocess_s=cell.postprocess_s,
        assets_s=0.0,
        load_fixed_s=_FIXED_SHARE * load_s,
        load_s={} if cell.is_link_shared else times_s,
    )


def _profiled_s(plan: ClusterPlan) -> dict[str, dict[str, float]]:
    """Times of the models by key and measure."""
    return {
        each.spec.key: {
            "infer": each.infer_s(1),
            "share": each.infer_s(1),
            **{f"load:{tier}": _load_s(each, plan, tier) for tier in (Tier.REMOTE, Tier.DISK)},
        }
        for each in plan.models
    }


def _load_s(model: ModelPlan, plan: ClusterPlan, tier: Tier) -> float:
    if tier in model.load_s:
        return model.load_s[tier]
    node = plan.nodes[0]
    is_remote = tier is Tier.REMOTE
    rate = node.object_storage_bytes_per_s if is_remote else node.disk_bytes_per_s
    return model.size_bytes / rate + model.load_fixed_s


def _latencies(run: Simulation | TwinRun) -> tuple[Floats, Bools]:
    """Time from arrival to response, and whether it was a success, of all requests."""
    rows = pa.Table.from_batches(list(run))
    latency_s = rows["finished_s"].to_numpy() - rows["scheduled_s"].to_numpy()
    return latency_s, rows["status"].to_numpy() == 200
