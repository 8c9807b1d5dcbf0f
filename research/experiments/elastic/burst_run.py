"""One simulated run of the burst: models without copies, each requested once at the same moment."""

import random
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from autoscaler.forecasting.counts import Counts, CountsParams
from autoscaler.policy import Limits
from load.schema import Trace
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.traces.batches import NameColumn, arrival_batch
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy
from registry.domain.pod import ProfilePoint
from research.experiments.elastic.pod_scaler import PodScaler, arrivals_and_latencies_s
from research.experiments.elastic.rules import PredictiveRule

MAX_PODS: Final = 60
INFER_S: Final = 0.05
MODEL_BYTES: Final = 250 * 10**6
STORAGE_BYTES_PER_S: Final = 1e9
"""Rate of a pod's link to object storage, shared by its loads."""
_PROCESSING_S: Final = 0.001
"""Time of preprocessing, and of postprocessing."""
_DEVICE_BYTES_PER_S: Final = 12e9
_LOAD_FIXED_S: Final = 0.05
LOAD_S: Final = (
    MODEL_BYTES / STORAGE_BYTES_PER_S + MODEL_BYTES / _DEVICE_BYTES_PER_S + _LOAD_FIXED_S
)
"""Time of a load while no other load runs."""
_MEASURED_S: Final = {
    "load:remote": LOAD_S,
    "infer": INFER_S,
    "share": INFER_S,
    "preprocess": _PROCESSING_S,
    "postprocess": _PROCESSING_S,
}
_IDLE_S: Final = 6 * 3600.0
"""Time without any request before the run."""
_BURST_AT_S: Final = (5.0, 6.0)
"""The burst arrives in this second, at a random time relative to the autoscaler's tick."""


@dataclass(frozen=True, slots=True)
class BurstTask:
    """One run."""

    models: int
    seed: int
    pod_start_s: float = 3.0
    """Time from the request for a pod until it runs."""
    is_known: bool = True
    """Whether the models' times are measured, as after some time in service."""
    pods_before: int = 0
    """Running pods at the start, without any model on their devices."""
    routing: RoutingPolicy = RoutingPolicy.AUTO


@dataclass(frozen=True, slots=True)
class BurstResult:
    """The result of a run."""

    took_s: tuple[float, ...]
    """From the burst to each response, ascending; infinite for a failed request."""
    loads: int
    """Started loads: as many as models if each was loaded once."""
    most_pods: int
    """Largest number of pods that ran at the same time."""


@dataclass(frozen=True, slots=True)
class LiveBurst:
    """The result of a burst to a pool without pods on a real platform."""

    is_known: bool
    """Whether the models were served before, so that their times are measured."""
    took_s: tuple[float, ...]
    """From the burst to each response, ascending."""
    loads: int
    """Copies of models that were loaded."""
    pods: int
    """Number of pods that were started."""
    first_pod_s: float
    """From the burst until the first pod accepted requests."""


def run_burst(task: BurstTask) -> BurstResult:
    pods = [f"pod-{number:02d}" for number in range(MAX_PODS)]
    names = [f"model-{number:03d}" for number in range(task.models)]
    cluster = _cluster(task, pods, names)
    counts = Counts(CountsParams(models=task.models))
    for plan in cluster.models:
        counts.add_model(str(plan.spec.name))
    counts.advance(_IDLE_S)
    limits = Limits(task.pods_before, MAX_PODS)
    rule = PredictiveRule(cluster, limits, pods=task.pods_before, counts=counts, epoch_s=_IDLE_S)
    scaler = PodScaler(rule, pods, start_s=task.pod_start_s)
    run = Simulation(cluster, _trace(task, names), seed=task.seed, autoscaler=scaler)
    if task.is_known:
        run.set_measured_times({plan.spec.key: _MEASURED_S for plan in cluster.models})
    _, latencies_s = arrivals_and_latencies_s(run)
    most_pods = max(count for _, count in scaler.pods_at)
    return BurstResult(
        tuple(np.sort(latencies_s).tolist()), run.summary.loads_started.total(), most_pods
    )


def _trace(task: BurstTask, names: list[str]) -> Trace:
    at_s = random.Random(f"{task.seed}:burst").uniform(*_BURST_AT_S)
    models = NameColumn(names).column(np.arange(task.models, dtype=np.int32))
    return [arrival_batch(np.full(task.models, at_s), model=models)]


def _cluster(task: BurstTask, pods: list[str], names: list[str]) -> ClusterPlan:
    """A pod per node, so that pods do not share a link to object storage."""
    models = tuple(
        ModelPlan(
            ModelSpec(
                ModelName("default", name),
                f"s3://simulated/{name}",
                policy=ModelPolicy(routing=task.routing),
            ),
            size_bytes=MODEL_BYTES,
            memory_bytes=MODEL_BYTES,
            infer=(ProfilePoint(1, INFER_S),),
            preprocess_s=_PROCESSING_S,
            postprocess_s=_PROCESSING_S,
            load_fixed_s=_LOAD_FIXED_S,
        )
        for name in names
    )
    nodes = tuple(
        NodePlan(
            name,
            (
                PodPlan(
                    name,
                    device_bytes_per_s=_DEVICE_BYTES_PER_S,
                    start_s=0.0 if number < task.pods_before else inf,
                ),
            ),
            object_storage_bytes_per_s=STORAGE_BYTES_PER_S,
        )
        for number, name in enumerate(pods)
    )
    return ClusterPlan(nodes, models)
