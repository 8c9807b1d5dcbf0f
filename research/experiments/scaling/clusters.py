"""A simulated cluster of any size under load: cold starts, fairness, time of a routing decision.

Every pod has memory for twice its share of the models. At the start each model is warm on one pod;
pods are assigned round robin, regardless of the models' popularity, which follows Zipf's law.
Models are assigned to ten tenants round robin. Measured times are CPU times of this thread.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from gateway.routing.route_request import IncomingRequest, route_request
from load.report.summary import jain
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.traces.batches import NameColumn, arrival_batch
from load.traces.parameters import zipf_shares
from registry.domain.model import ModelName, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import ProfilePoint

_TENANTS: Final = 10
_INFER_S: Final = 0.02
_BUSY_SHARE: Final = 0.5
_SLOTS: Final = 4
_MODEL_BYTES: Final = 250 * 10**6
_ZIPF_EXPONENT: Final = 0.9
_DEADLINE_S: Final = 1.0
_BATCH_ROWS: Final = 2_000
_MAX_DECISIONS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ClusterSizeTask:
    pods: int
    models: int
    requests: int
    policy: RoutingPolicy
    seed: int


@dataclass(frozen=True, slots=True)
class ClusterSizeResult:
    cold_starts: int
    p50_s: float
    p99_s: float
    in_time: float
    """Share of requests served within the deadline."""
    fairness: float
    """Jain's index of the tenants' shares of requests served in time."""
    decision_p50_us: float
    decision_p95_us: float
    request_us: float
    """CPU time of the whole simulation per request."""


def simulate_size(task: ClusterSizeTask) -> ClusterSizeResult:
    run = Simulation(_cluster(task), _trace(task), task.policy, task.seed)
    arrived: Counter[str] = Counter()
    served: Counter[str] = Counter()
    decisions_us: list[float] = []
    began_s, excluded_s = time.thread_time(), 0.0
    for batch in run:
        pause_s = time.thread_time()
        tenants = batch.column("tenant").to_pylist()
        statuses = batch.column("status").to_pylist()
        arrived.update(tenants)
        served.update(
            tenant for tenant, status in zip(tenants, statuses, strict=True) if status == 200
        )
        if not decisions_us and arrived.total() >= task.requests / 2:
            decisions_us = _decisions_us(run, task)
        excluded_s += time.thread_time() - pause_s
    took_s = time.thread_time() - began_s - excluded_s
    summary = run.summary
    p50_us, p95_us = np.percentile(decisions_us, (50, 95))
    return ClusterSizeResult(
        cold_starts=summary.cold_starts,
        p50_s=summary.quantile_s(0.5),
        p99_s=summary.quantile_s(0.99),
        in_time=served.total() / max(1, arrived.total()),
        fairness=jain([served[tenant] / arrived[tenant] for tenant in arrived]) or 0.0,
        decision_p50_us=float(p50_us),
        decision_p95_us=float(p95_us),
        request_us=1e6 * took_s / task.requests,
    )


def _decisions_us(run: Simulation, task: ClusterSizeTask) -> list[float]:
    """CPU times of decisions for random models, on the cluster in the middle of the run."""
    rng = random.Random(f"{task.seed}:decisions")
    state, now_s = run.registry.state, run.events.now_s
    names = list(state.models)
    times_us = []
    for sequence in range(min(_MAX_DECISIONS, task.requests)):
        name, draw = rng.choice(names), rng.random()
        began_ns = time.thread_time_ns()
        request = IncomingRequest(
            "d", name, now_s, draw, sequence, task.policy, now_s + _DEADLINE_S
        )
        route_request(request, state.models, state, now_s=now_s)
        times_us.append((time.thread_time_ns() - began_ns) / 1000)
    return times_us


def _cluster(task: ClusterSizeTask) -> ClusterPlan:
    models_per_pod = max(2, -(-2 * task.models // task.pods))
    width = len(str(task.pods - 1))
    nodes = tuple(
        NodePlan(name, (PodPlan(name, slots=_SLOTS, memory_bytes=models_per_pod * _MODEL_BYTES),))
        for name in (f"pod-{number:0{width}d}" for number in range(task.pods))
    )
    points = (ProfilePoint(1, _INFER_S), ProfilePoint(8, 3 * _INFER_S))
    models = tuple(
        ModelPlan(
            ModelSpec(ModelName(_tenant(number), _model(number)), f"s3://simulated/{number}"),
            size_bytes=_MODEL_BYTES,
            memory_bytes=_MODEL_BYTES,
            infer=points,
            at={nodes[number % task.pods].name: Tier.DEVICE},
        )
        for number in range(task.models)
    )
    return ClusterPlan(nodes, models)


def _trace(task: ClusterSizeTask) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(task.seed)
    chosen = rng.choice(task.models, task.requests, p=zipf_shares(task.models, _ZIPF_EXPONENT))
    at_s = np.cumsum(rng.exponential(_INFER_S / _BUSY_SHARE / task.pods, task.requests))
    tenants = NameColumn(_tenant(number) for number in range(min(_TENANTS, task.models)))
    models = NameColumn(_model(number) for number in range(task.models))
    whole = arrival_batch(
        at_s,
        model=models.column(chosen.astype(np.int32)),
        tenant=tenants.column((chosen % _TENANTS).astype(np.int32)),
        deadline_s=np.full(task.requests, _DEADLINE_S),
    )
    return [whole.slice(first, _BATCH_ROWS) for first in range(0, task.requests, _BATCH_ROWS)]


def _tenant(number: int) -> str:
    return f"tenant-{number % _TENANTS}"


def _model(number: int) -> str:
    return f"model-{number}"
