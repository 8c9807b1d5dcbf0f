"""One plan simulated: Poisson load on GPUs that its replicas share, as Elvinger 2024 measured.

Requests are routed by `batch-round-robin`, late ones are served. Interference is `overlap`, which
no planner uses.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import pyarrow as pa

from autoscaler.placement.problem import BatchPoint, PlanParams, Profiles, Workload
from load.schema import TRACE_SCHEMA
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.gateway import QueueOptions
from load.simulator.simulation import Simulation
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Tier
from registry.domain.pod import ProfilePoint
from registry.domain.records import PlacedReplica
from research.experiments.elvinger.stages import Row, Stages, stages_of
from research.routing.batch_round_robin import MAX_BUILD_S

WARM_UP_S: Final = 2.0
LOAD_S: Final = 8.0
"""4000 requests at 500 req/s, as in the thesis."""
BATCH_ROUND_ROBIN: Final = "batch-round-robin"
_SLOTS: Final = 10_000
_NODE: Final = "gpus"


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """What became of one model's requests that arrived after the warm-up, per second."""

    offered_rps: float
    goodput_rps: float
    """Responses within the SLO, per second of arrivals."""
    throughput_rps: float
    """Responses per second from the first arrival to the last response."""
    stages: Stages | None = None
    """Only of models for which they were asked."""


@dataclass(frozen=True, slots=True)
class PlacedLoad:
    """A plan, its load, and how its requests are routed."""

    replicas: tuple[PlacedReplica, ...]
    workloads: tuple[Workload, ...]
    kinds: Mapping[str, str]
    """Of the accelerators by name."""
    params: PlanParams
    """Transfers and other times around the inference, by model."""
    interference: str = "overlap"
    """Or `none`."""
    policy: str = BATCH_ROUND_ROBIN


def simulate(
    load: PlacedLoad, profiles: Profiles, seed: int, shown: Sequence[str] = ()
) -> dict[str, ServedLoad]:
    """By model; a model without replicas has no goodput. `shown`: models whose stages are kept."""
    served = {each.model for each in load.replicas}
    offered = [each for each in load.workloads if each.model in served and each.rate_rps > 0]
    found = {each.model: ServedLoad(each.rate_rps, 0.0, 0.0) for each in load.workloads}
    if not offered:
        return found
    simulation = Simulation(
        _cluster(load, profiles),
        [_trace(offered, seed)],
        None,
        seed,
        queueing=QueueOptions(serves_late=True),
    )
    rows = [row for batch in simulation for row in batch.to_pylist()]
    for workload in offered:
        mine = [row for row in rows if row["model"] == workload.model]
        served_load = _served(workload, mine)
        if workload.model in shown:
            served_load = replace(served_load, stages=_stages(workload.model, mine, load))
        found[workload.model] = served_load
    return found


def _stages(model: str, rows: Sequence[Row], load: PlacedLoad) -> Stages:
    sizes = {_pod_name(each): each.batch_size for each in load.replicas if each.model == model}
    return stages_of([row for row in rows if row["status"] == 200], sizes, WARM_UP_S)


def _pod_name(replica: PlacedReplica) -> str:
    return f"{replica.accelerator}-{replica.model.replace('_', '-')}"


def _served(workload: Workload, rows: Sequence[Row]) -> ServedLoad:
    counted = [row for row in rows if row["scheduled_s"] >= WARM_UP_S]
    done = [row for row in counted if row["status"] == 200]
    in_time = [r for r in done if r["finished_s"] - r["scheduled_s"] <= workload.slo_s]
    last_s = max((row["finished_s"] for row in done), default=WARM_UP_S + LOAD_S)
    return ServedLoad(
        len(counted) / LOAD_S, len(in_time) / LOAD_S, len(done) / max(LOAD_S, last_s - WARM_UP_S)
    )


def _cluster(load: PlacedLoad, profiles: Profiles) -> ClusterPlan:
    pods = tuple(
        PodPlan(
            _pod_name(each),
            slots=_SLOTS,
            gpu=each.accelerator,
            share_pct=each.share_pct,
            batch_cap=each.batch_size,
            placed_model=str(ModelName("default", each.model)),
        )
        for each in load.replicas
    )
    models = []
    for workload in load.workloads:
        mine = [
            (pod, each)
            for pod, each in zip(pods, load.replicas, strict=True)
            if each.model == workload.model
        ]
        if mine:
            kind = load.kinds[mine[0][1].accelerator]
            largest = max(each.batch_size for _, each in mine)
            models.append(
                _model(
                    workload,
                    profiles.points(workload.model, kind),
                    load,
                    largest,
                    [pod.name for pod, _ in mine],
                )
            )
    return ClusterPlan(
        (NodePlan(_NODE, pods),),
        tuple(models),
        gateway_hop_s=0.0,
        pod_hop_s=0.0,
        interference=load.interference,
    )


def _model(
    workload: Workload,
    points: Sequence[BatchPoint],
    load: PlacedLoad,
    largest: int,
    pods: Sequence[str],
) -> ModelPlan:
    """Inputs of a batch are sent together: each request waits for all of them."""
    is_built = load.policy == BATCH_ROUND_ROBIN
    transfer_s = load.params.transfer_s.get(workload.model, 0.0) * (largest if is_built else 1)
    policy = ModelPolicy(
        routing=load.policy,
        deadline_s=workload.slo_s,
        max_batch_wait_s=MAX_BUILD_S if is_built else 0.0,
        queue_depth=1_000_000,
    )
    name = ModelName("default", workload.model)
    return ModelPlan(
        ModelSpec(name, f"s3://simulated/{name.name}", policy=policy),
        size_bytes=1,
        memory_bytes=1,
        infer=tuple(ProfilePoint(each.batch_size, each.latency_s) for each in points),
        sm_utilization=tuple((each.batch_size, each.sm_utilization_pct) for each in points),
        preprocess_s=load.params.overhead_s.get(workload.model, 0.0) + transfer_s,
        postprocess_s=0.0,
        assets_s=0.0,
        at=dict.fromkeys(pods, Tier.DEVICE),
    )


def _trace(workloads: Sequence[Workload], seed: int) -> pa.RecordBatch:
    arrivals = sorted(chain.from_iterable(_arrivals(each, seed) for each in workloads))
    times_s, models = zip(*arrivals, strict=True)
    count = len(times_s)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(times_s, pa.float64()),
            pa.array(["default"] * count, pa.string()).dictionary_encode(),
            pa.array(models, pa.string()).dictionary_encode(),
            pa.array([1] * count, pa.int64()),
            pa.array([0] * count, pa.int64()),
            pa.array([None] * count, pa.float64()),
            pa.nulls(count, TRACE_SCHEMA.field("blocks").type),
        ],
        schema=TRACE_SCHEMA,
    )


def _arrivals(workload: Workload, seed: int) -> list[tuple[float, str]]:
    """Poisson, by model and seed, so that plans are compared on equal arrivals."""
    rng = random.Random(f"{seed}:{workload.model}:{workload.rate_rps}")
    found, at_s = [], rng.expovariate(workload.rate_rps)
    while at_s < WARM_UP_S + LOAD_S:
        found.append((at_s, workload.model))
        at_s += rng.expovariate(workload.rate_rps)
    return found
