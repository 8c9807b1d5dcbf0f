"""One run of the burst: models that no pod has, each asked for once at the same moment."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.counts import Counts, CountsParams
from autoscaler.planning.pool_view import Limits
from load.experiments.elastic.rules import Ours
from load.experiments.elastic.scaler import PodScaler
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.traces.batches import arrival_batch
from load.traces.name_columns import NameColumn
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy
from registry.domain.profile import ProfilePoint

if TYPE_CHECKING:
    from load.schema import Trace

MOST_PODS: Final = 60
INFER_S: Final = 0.05
AROUND_S: Final = 0.001
"""Preprocessing, and the same again for postprocessing."""
MODEL_BYTES: Final = 250 * 10**6
STORAGE_BYTES_PER_S: Final = 1e9
"""Of a pod's link to object storage, shared by its loads."""
_DEVICE_BYTES_PER_S: Final = 12e9
_LOAD_FIXED_S: Final = 0.05
LOAD_S: Final = (
    MODEL_BYTES / STORAGE_BYTES_PER_S + MODEL_BYTES / _DEVICE_BYTES_PER_S + _LOAD_FIXED_S
)
"""Of a model that loads alone."""
_KNOWN_S: Final = {
    "load:remote": LOAD_S, "infer": INFER_S, "share": INFER_S, "preprocess": AROUND_S,
    "postprocess": AROUND_S,
}  # fmt: skip
_QUIET_S: Final = 6 * 3600.0
"""For so long nobody asked for anything before the run."""
_AT_S: Final = (5.0, 6.0)
"""The burst comes within this second, at no certain time from the autoscaler's tick."""


@dataclass(frozen=True, slots=True)
class BurstTask:
    """One run."""

    models: int
    seed: int
    pod_start_s: float = 3.0
    """From asking for a pod until it is there."""
    is_known: bool = True
    """Whether the models' times were measured, as after some time in service."""
    pods_before: int = 0
    """Pods that stand ready, with no model on their devices."""
    routing: RoutingPolicy = RoutingPolicy.AUTO


@dataclass(frozen=True, slots=True)
class Burst:
    """What a run came to."""

    took_s: tuple[float, ...]
    """From the burst to each answer, rising; infinite where a request failed."""
    loads: int
    """That were begun: as many as models where each was loaded once."""
    most_pods: int
    """That lived at a time."""


def run_burst(task: BurstTask) -> Burst:
    """Simulate."""
    pods = [f"pod-{at:02d}" for at in range(MOST_PODS)]
    cluster = _cluster(task, pods)
    rule = Ours(
        Limits(task.pods_before, MOST_PODS),
        pods=task.pods_before,
        counts=_nothing_counted(cluster),
        epoch_s=_QUIET_S,
    )
    scaler = PodScaler(rule, pods, start_s=task.pod_start_s)
    run = Simulation(cluster, _trace(task), seed=task.seed, autoscaler=scaler)
    if task.is_known:
        run.set_measured_times({plan.spec.key: _KNOWN_S for plan in cluster.models})
    took_s: list[float] = []
    for batch in run:
        came, finished, status = (
            batch.column(name).to_numpy(zero_copy_only=False)
            for name in ("scheduled_s", "finished_s", "status")
        )
        took_s += np.where(status == 200, finished - came, inf).tolist()
    most_pods = max(count for _, count in scaler.pods_at)
    return Burst(tuple(sorted(took_s)), run.summary.loads_started.total(), most_pods)


def _nothing_counted(cluster: ClusterPlan) -> Counts:
    counts = Counts(CountsParams(models=len(cluster.models)))
    for plan in cluster.models:
        counts.add_model(str(plan.spec.name))
    counts.advance(_QUIET_S)
    return counts


def _name(number: int) -> str:
    return f"model-{number:03d}"


def _trace(task: BurstTask) -> Trace:
    at_s = random.Random(f"{task.seed}:burst").uniform(*_AT_S)
    column = NameColumn(map(_name, range(task.models))).column(
        np.arange(task.models, dtype=np.int32)
    )
    return [arrival_batch(np.full(task.models, at_s), model=column)]


def _cluster(task: BurstTask, pods: list[str]) -> ClusterPlan:
    """A pod a node, so that pods do not share a link to object storage."""
    models = tuple(
        ModelPlan(
            ModelSpec(
                ModelName("default", _name(number)),
                f"s3://simulated/{_name(number)}",
                policy=ModelPolicy(routing=task.routing),
            ),
            size_bytes=MODEL_BYTES,
            memory_bytes=MODEL_BYTES,
            infer=(ProfilePoint(1, INFER_S),),
            preprocess_s=AROUND_S,
            postprocess_s=AROUND_S,
            load_fixed_s=_LOAD_FIXED_S,
        )
        for number in range(task.models)
    )
    nodes = tuple(
        NodePlan(
            name,
            (
                PodPlan(
                    name,
                    device_bytes_per_s=_DEVICE_BYTES_PER_S,
                    start_s=0.0 if at < task.pods_before else inf,
                ),
            ),
            object_storage_bytes_per_s=STORAGE_BYTES_PER_S,
        )
        for at, name in enumerate(pods)
    )
    return ClusterPlan(nodes, models)
